"""Attention over a ring: the last positions of each row, kept by position modulo its slots."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from sonant.kernels.reference.transformer import Heads, Place, dense_attention, qk_rope


class RingPlace:
    """Which rows of a ring a call is about, and where they stand: rows [B], and consecutive positions [B, T].

    What follows from them is made when it is asked for, once for all layers.
    """

    def __init__(self, rows: Tensor, positions: Tensor, window: int, slots: int) -> None:
        assert positions.shape[1] <= slots - window + 1, "a call brings more than its ring has room for"
        self.rows, self.positions, self.window, self.slots = rows, positions, window, slots

    @cached_property
    def written(self) -> Tensor:
        """[B · T]: where new keys and values go, over all rows' slots."""
        return (self.rows[:, None] * self.slots + self.positions % self.slots).flatten()

    @cached_property
    def bias(self) -> Tensor:
        """[B, 1, T, slots]: 0 where a query sees a slot's key, else -∞, which is what masks are made into."""
        last = self.positions[:, -1:]
        held = last - (last - torch.arange(self.slots, device=last.device)) % self.slots  # the position in each slot
        age = self.positions[..., None] - held[:, None]
        visible = ((age >= 0) & (age < self.window) & (held[:, None] >= 0))[:, None]
        return torch.where(visible, 0.0, -torch.inf)


def ring_attention(qkv: Tensor, heads: Heads, ring: Tensor, place: RingPlace) -> Tensor:
    """Queries, keys and values as `qk_rope` makes them, each query over the last `window` positions up to its own.

    qkv [B, T, (heads + 2 · kv_heads) · D] → [B, T, heads, D]; new keys and values are added to the ring
    [2, rows, slots, kv_heads, D]. Slots that were never written must be finite.
    """
    q, _, _ = qk_rope(qkv, heads, Place(ring, place.written))
    keys, values = ring
    return dense_attention(q, keys[place.rows], values[place.rows], place.bias.to(ring.dtype))
