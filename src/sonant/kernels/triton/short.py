"""Attention over a frame's few codebooks, from the fused projection to what the heads gather, in one kernel.

One program of one warp serves a row and a query head: norms, rotations, the new keys and values, and all positions
stay in its registers, so nothing waits at a barrier. Heads that share keys each make the new ones; the first of them
stores them. Where rows stand is the host's own count, not a value it reads.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.reference import Heads
from sonant.kernels.triton.norm_rope import gains, norm_rope, partner_of
from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior


@triton.jit
def _line(tile, number: tl.constexpr):
    """One line of a tile, for all threads that need it."""
    line = tl.arange(0, tile.shape[0])
    return tl.sum(tl.where((line == number)[:, None], tile.to(tl.float32), 0.0), axis=0)


@triton.jit(do_not_specialize=["first"])
def _short_attention(
    qkv, q_weight, k_weight, cos, sin, cache, out, plane, rope_stride, first, eps, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, STEPS: tl.constexpr, POSITIONS: tl.constexpr,
    TILE: tl.constexpr, LINES: tl.constexpr, NORM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    launch_dependents(PDL)
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    dtype: tl.constexpr = out.dtype.element_ty
    column, position, line = tl.arange(0, DIM), tl.arange(0, TILE), tl.arange(0, LINES)
    q_gain, q_partner_gain = gains(q_weight, DIM, NORM)
    k_gain, k_partner_gain = gains(k_weight, DIM, NORM)
    step, part = line // 3, line % 3  # a step has three lines: query, key, value
    real, is_query = (line < 3 * STEPS)[:, None], (part == 0)[:, None]
    place = tl.where(part == 0, head, HEADS + kv_head + (part - 1) * KV_HEADS)
    source = qkv + (((row * STEPS + step) * (HEADS + 2 * KV_HEADS) + place) * DIM)[:, None]
    angle = (row * rope_stride + step * DIM)[:, None] + column[None]
    at = (((row * POSITIONS + position) * KV_HEADS + kv_head) * DIM)[:, None] + column[None]
    written = (position < first)[:, None]
    wait_prior(PDL)
    plain = tl.load(source + column[None], mask=real, other=0.0)
    partner = tl.load(source + partner_of(column, DIM)[None], mask=real, other=0.0)
    c, s = tl.load(cos + angle, mask=real, other=0.0), tl.load(sin + angle, mask=real, other=0.0)
    keys = tl.load(cache + at, mask=written, other=0.0)
    values = tl.load(cache + plane + at, mask=written, other=0.0)
    gain = tl.where(is_query, q_gain[None], k_gain[None])
    partner_gain = tl.where(is_query, q_partner_gain[None], k_partner_gain[None])
    ready = norm_rope(plain, partner, gain, partner_gain, c, s, eps, DIM, NORM, dtype)
    ready = tl.where((part == 2)[:, None], plain, ready)

    for fresh in tl.static_range(STEPS):
        here = (position == first + fresh)[:, None]
        keys = tl.where(here, _line(ready, 3 * fresh + 1).to(dtype)[None], keys)
        values = tl.where(here, _line(ready, 3 * fresh + 2).to(dtype)[None], values)
    mixed = tl.zeros([LINES, DIM], tl.float32)
    for query in tl.static_range(STEPS):
        score = tl.sum(keys.to(tl.float32) * _line(ready, 3 * query)[None], axis=1) * scale
        score = tl.where(position <= first + query, score, float("-inf"))
        weight = tl.exp(score - tl.max(score, axis=0))
        weight *= 1 / tl.sum(weight, axis=0)
        total = tl.sum(values.to(tl.float32) * weight[:, None], axis=0)
        mixed = tl.where((line == 3 * query)[:, None], total[None], mixed)

    # stores come last, since no load may pass them
    slot = ((row * POSITIONS + first + step) * KV_HEADS + kv_head) * DIM + (part - 1) * plane
    new = real & (part > 0)[:, None] & (head % (HEADS // KV_HEADS) == 0)
    tl.store(cache + slot[:, None] + column[None], ready, mask=new)
    to = ((row * STEPS + step) * HEADS + head) * DIM
    tl.store(out + to[:, None] + column[None], mixed.to(dtype), mask=real & is_query)


def short_attention(qkv: Tensor, heads: Heads, cache: Tensor, first: int) -> Tensor:
    batch, steps = qkv.shape[:2]
    _, _, positions, kv_heads, dim = cache.shape
    qkv, cos, sin = qkv.contiguous(), heads.cos.contiguous(), heads.sin.contiguous()
    out = qkv.new_empty(batch, steps, heads.heads, dim)
    norm = heads.q_weight is not None
    _short_attention[(batch, heads.heads)](
        qkv,
        heads.q_weight if norm else qkv,
        heads.k_weight if norm else qkv,
        cos,
        sin,
        cache,
        out,
        cache.stride(0),
        0 if len(cos) == 1 else steps * dim,
        first,
        heads.eps,
        dim**-0.5,
        HEADS=heads.heads,
        KV_HEADS=kv_heads,
        DIM=dim,
        STEPS=steps,
        POSITIONS=positions,
        TILE=triton.next_power_of_2(first + steps),
        LINES=triton.next_power_of_2(3 * steps),
        NORM=norm,
        num_warps=1,
        **launch_options(qkv),
    )
    return out
