"""A step of a flow that is guided away from what the model makes of nothing."""

from __future__ import annotations

from torch import Tensor

_LEAST = 1e-8


def guided_step(x: Tensor, velocity: Tensor, guidance: Tensor, length: float) -> Tensor:
    """x [B, T, C] float32 moved by -`length` along its velocity [2B, T, C]: the guided half first, then the other.

    The unguided velocity is scaled to what the guided one has of it (CFG-Zero*), taken away, and `guidance` [B] times
    what is left put onto it.
    """
    guided, free = velocity.float().chunk(2)
    dims = (1, 2)
    share = (guided * free).sum(dims, keepdim=True) / (free.square().sum(dims, keepdim=True) + _LEAST)
    free = free * share
    return x - length * (free + guidance[:, None, None] * (guided - free))
