"""Where a layer's keys and values come from and go to.

A transformer layer hands its fresh q, k, v to a `Context` and gets attention's result back; the layer does not
know whether that was a training batch, a paged cache or a ring. State is explicit: a context is built for one
forward call and holds nothing that outlives it but the tensors it was given.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from sonant.kernels import ops
from sonant.kernels.reference import Place


class Context(Protocol):
    def place(self, layer: int) -> Place | None:
        """Where the layer's keys and values are to be written as they are made; None: `attend` wants them."""
        ...

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [B, T, Hq, D], k and v [B, T, Hkv, D] of layer `layer` → [B, T, Hq, D]."""
        ...


class FullContext:
    """The whole sequence at once, causal: training, and one-shot decoding."""

    def __init__(self, window: int | None = None) -> None:
        self.window = window

    def place(self, layer: int) -> None:
        return None

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.window is None:
            return ops.dense_attention(q, k, v, None)
        index = torch.arange(q.shape[1], device=q.device)
        age = index[:, None] - index
        return ops.dense_attention(q, k, v, (age >= 0) & (age < self.window))


class PagedContext:
    """A cache in blocks [layers, 2, blocks, block_tokens, heads, dim]: the engine's, or one frame's own.

    Writes go to `slots` [B·T] (scratch for padding), reads follow `tables` up to `positions` [B, T].
    """

    def __init__(self, cache: Tensor, tables: Tensor, positions: Tensor, slots: Tensor, span_blocks: int) -> None:
        self.cache, self.tables, self.positions, self.slots = cache, tables, positions, slots
        self.span_blocks = span_blocks

    def place(self, layer: int) -> Place:
        return Place(self.cache[layer], self.slots)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ops.paged_attention(q, self.cache[layer], self.tables, self.positions, self.span_blocks)


class RingContext:
    """The last `window` positions of each row, in a ring [layers, 2, rows, slots, heads, dim] by position modulo slots.

    Only what is new is written, before it is read. A ring therefore has room for all that one call brings beside the
    `window - 1` positions that its first query still sees. Slots that were never written are masked and must be finite.
    """

    def __init__(self, ring: Tensor, rows: Tensor, positions: Tensor, window: int) -> None:
        self.layers, self.rows = ring.unbind(), rows
        slots = ring.shape[3]
        assert positions.shape[1] <= slots - window + 1, "a call brings more than its ring has room for"
        self.slots = (rows[:, None] * slots + positions % slots).flatten()
        last = positions[:, -1:]
        held = last - (last - torch.arange(slots, device=ring.device)) % slots  # the position in each slot
        age = positions[..., None] - held[:, None]
        self.visible = ((age >= 0) & (age < window) & (held[:, None] >= 0))[:, None]

    def place(self, layer: int) -> Place:
        return Place(self.layers[layer], self.slots)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self.layers[layer]
        return ops.dense_attention(q, keys[self.rows], values[self.rows], self.visible)
