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


class WindowContext:
    """The last `window - 1` positions of each row, oldest first, carried from call to call.

    `past` [B, layers, 2, window - 1, H, D] is read; `following()` gives the same for the next call.
    Slots that lie before a row's first position are masked and must be finite.
    """

    def __init__(self, past: Tensor, positions: Tensor) -> None:
        self.past = past
        held = past.shape[3]
        fresh = positions.shape[1]
        index = torch.arange(held + fresh, device=past.device)
        key_position = positions[:, :1] - held + index
        age = positions[..., None] - key_position[:, None]
        self.visible = ((age >= 0) & (age <= held) & (key_position[:, None] >= 0))[:, None]
        self.next: list[Tensor] = []

    def place(self, layer: int) -> None:
        return None

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        held = self.past.shape[3]
        k, v = (torch.cat([self.past[:, layer, i], new], 1) for i, new in enumerate((k, v)))
        self.next.append(torch.stack([k[:, -held:], v[:, -held:]], 1))
        return ops.dense_attention(q, k, v, self.visible)

    def following(self) -> Tensor:
        return torch.stack(self.next, 1)
