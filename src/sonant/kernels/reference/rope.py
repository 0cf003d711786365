"""From a fused projection to the heads of attention: norm by head, rotary positions, and their place in the cache."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sonant.kernels.reference.linear import rms_norm


class Place(NamedTuple):
    """Where fresh keys and values go: token slots [N] of a cache [2, blocks, block_tokens, H, D]."""

    cache: Tensor
    slots: Tensor


class Heads(NamedTuple):
    """What makes queries and keys of a fused projection: the gains of their norms, if any, rotations and counts."""

    q_weight: Tensor | None
    k_weight: Tensor | None
    cos: Tensor  # [B or 1, T, 1, D]
    sin: Tensor
    heads: int
    kv_heads: int
    eps: float


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions, half-split layout. x [B, T, H, D]; cos, sin [B, T, 1, D] in x's dtype."""
    half = x.shape[-1] // 2
    quarter_turn = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return x * cos + quarter_turn * sin


def qk_rope(qkv: Tensor, heads: Heads, place: Place | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Split qkv [B, T, (heads + 2 · kv_heads) · D], norm queries and keys by head if weights are given, rotate them.

    → q [B, T, heads, D], k and v [B, T, kv_heads, D], or with a `place` empty ones: they are in the cache then.
    """
    split = qkv.unflatten(-1, (heads.heads + 2 * heads.kv_heads, -1))
    q, k, v = split.split([heads.heads, heads.kv_heads, heads.kv_heads], dim=2)
    if heads.q_weight is not None and heads.k_weight is not None:
        q, k = rms_norm(q, heads.q_weight, heads.eps), rms_norm(k, heads.k_weight, heads.eps)
    q, k = rotate(q, heads.cos, heads.sin), rotate(k, heads.cos, heads.sin)
    if place is not None:
        paged_write(place.cache, k.flatten(0, 1), v.flatten(0, 1), place.slots)
        k = v = q.new_empty(0)
    return q, k, v


def paged_write(cache: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
    """Put k, v [N, H, D] at token slots [N] of cache [2, blocks, block_tokens, H, D]."""
    flat = cache.view(2, -1, *cache.shape[3:])
    flat[0].index_copy_(0, slots, k)
    flat[1].index_copy_(0, slots, v)
