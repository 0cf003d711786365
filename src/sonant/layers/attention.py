"""Where a layer's keys and values come from and go to.

A transformer layer hands its fused projection to a `Context`, with the `Heads` that it is split into, and gets
attention's output back; the layer does not know whether that was a training batch, a paged cache or a ring. State is
explicit: a context is built for one forward call and holds nothing that outlives it but the tensors it was given.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from sonant.kernels import ops
from sonant.kernels.reference import Heads, Place, RingPlace


class Context(Protocol):
    def mix(self, layer: int, qkv: Tensor, heads: Heads) -> Tensor:
        """Attention of layer `layer`: qkv [B, T, (Hq + 2 · Hkv) · D] → [B, T, Hq, D]."""
        ...


class FullContext:
    """The whole sequence at once, causal: training, and one-shot decoding."""

    def __init__(self, window: int | None = None) -> None:
        self.window = window

    def mix(self, layer: int, qkv: Tensor, heads: Heads) -> Tensor:
        return self.attend(layer, *ops.qk_rope(qkv, heads))

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.window is None:
            return ops.dense_attention(q, k, v, None)
        index = torch.arange(q.shape[1], device=q.device)
        age = index[:, None] - index
        return ops.dense_attention(q, k, v, (age >= 0) & (age < self.window))


class PagedContext:
    """The engine's cache, in blocks [layers, 2, blocks, block_tokens, heads, dim].

    Writes go to `slots` [B·T] (scratch for padding), reads follow `tables` up to `positions` [B, T]. Without slots
    there is one position a row, and writes follow the tables too.
    """

    def __init__(
        self, cache: Tensor, tables: Tensor, positions: Tensor, slots: Tensor | None, span_blocks: int
    ) -> None:
        self.cache, self.tables, self.positions, self.slots = cache, tables, positions, slots
        self.span_blocks = span_blocks

    def mix(self, layer: int, qkv: Tensor, heads: Heads) -> Tensor:
        cache = self.cache[layer]
        if self.slots is None:
            return ops.paged_step(qkv, heads, cache, self.tables, self.positions, self.span_blocks)
        q, _, _ = ops.qk_rope(qkv, heads, Place(cache, self.slots))
        return ops.paged_attention(q, cache, self.tables, self.positions, self.span_blocks)


class ShortContext:
    """A frame's own cache [layers, 2, B, positions, heads, dim], whose rows are all at positions `first`…"""

    def __init__(self, cache: Tensor, first: int) -> None:
        self.cache, self.first = cache, first

    def mix(self, layer: int, qkv: Tensor, heads: Heads) -> Tensor:
        return ops.short_attention(qkv, heads, self.cache[layer], self.first)


class LocalContext:
    """A few positions at once that all see each other, and nothing else."""

    def mix(self, layer: int, qkv: Tensor, heads: Heads) -> Tensor:
        return ops.local_attention(qkv, heads)


class RingContext:
    """The last `window` positions of each row, in a ring [layers, 2, rows, slots, heads, dim] by position modulo slots.

    A call may write its new positions, and nothing else, before it reads. A ring therefore has room for them beside the
    `window - 1` positions that the first query still sees. Slots that were never written are masked and must be finite.
    """

    def __init__(self, ring: Tensor, rows: Tensor, positions: Tensor, window: int) -> None:
        self.layers, self.place = ring.unbind(), RingPlace(rows, positions, window, ring.shape[3])

    def mix(self, layer: int, qkv: Tensor, heads: Heads) -> Tensor:
        return ops.ring_attention(qkv, heads, self.layers[layer], self.place)
