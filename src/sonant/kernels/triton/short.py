"""Attention over a frame's few codebooks, from the fused projection to the heads' outputs, in one kernel.

One program of one warp serves a row and the query heads that share a key-value head: norms, rotations, the new keys and
values, and all positions stay in its registers, so nothing waits at a barrier, and keys are read once. With few rows
there are enough processors for one program per query head; the first of those that share keys stores the new ones. The
host counts the rows' position itself; no kernel reads it from memory.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.reference import Heads
from sonant.kernels.sizes import next_power_of_2
from sonant.kernels.triton.norm import row_factor
from sonant.kernels.triton.norm_rope import gains, norm_rope, partner_of
from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior
from sonant.kernels.triton.scaled_product import mixed_dtype

_PROCESSORS = 132  # of an H100 or H200


@triton.jit
def _line(tile, number: tl.constexpr):
    """One line of a tile, broadcast to all threads that need it."""
    line = tl.arange(0, tile.shape[0])
    return tl.sum(tl.where((line == number)[:, None], tile.to(tl.float32), 0.0), axis=0)


@triton.jit(do_not_specialize=["first"])
def _short_attention(
    qkv, rows, q_weight, k_weight, cos, sin, cache, out, plane, rope_stride, first, eps, scale, hidden, rows_eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, STEPS: tl.constexpr, POSITIONS: tl.constexpr,
    TILE: tl.constexpr, LINES: tl.constexpr, NORM: tl.constexpr, PDL: tl.constexpr,
    SCALE: tl.constexpr, ROW_BLOCK: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    launch_dependents(PDL)
    row, first_head = tl.program_id(0).to(tl.int64), tl.program_id(1) * QUERIES
    share: tl.constexpr = HEADS // KV_HEADS
    kv_head = first_head // share
    each: tl.constexpr = QUERIES + 2  # lines of a step: queries, key, value
    dtype: tl.constexpr = qkv.dtype.element_ty
    column, position, line = tl.arange(0, DIM), tl.arange(0, TILE), tl.arange(0, LINES)
    q_gain, q_partner_gain = gains(q_weight, DIM, NORM)
    k_gain, k_partner_gain = gains(k_weight, DIM, NORM)
    step, part = line // each, line % each
    real, is_query = (line < each * STEPS)[:, None], (part < QUERIES)[:, None]
    place = tl.where(part < QUERIES, first_head + part, HEADS + kv_head + (part - QUERIES) * KV_HEADS)
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
    if SCALE:
        factor = tl.zeros([LINES], tl.float32)
        for at_step in tl.static_range(STEPS):
            own = row_factor(rows, row * STEPS + at_step, hidden, rows_eps, ROW_BLOCK)
            factor = tl.where(step == at_step, own, factor)
        plain = (plain.to(tl.float32) * factor[:, None]).to(dtype)
        partner = (partner.to(tl.float32) * factor[:, None]).to(dtype)
    gain = tl.where(is_query, q_gain[None], k_gain[None])
    partner_gain = tl.where(is_query, q_partner_gain[None], k_partner_gain[None])
    ready = norm_rope(plain, partner, gain, partner_gain, c, s, eps, DIM, NORM, dtype)
    ready = tl.where((part == QUERIES + 1)[:, None], plain, ready)

    for fresh in tl.static_range(STEPS):
        here = (position == first + fresh)[:, None]
        keys = tl.where(here, _line(ready, each * fresh + QUERIES).to(dtype)[None], keys)
        values = tl.where(here, _line(ready, each * fresh + QUERIES + 1).to(dtype)[None], values)
    mixed = tl.zeros([LINES, DIM], tl.float32)
    for query in tl.static_range(STEPS):
        for head in tl.static_range(QUERIES):
            score = tl.sum(keys.to(tl.float32) * _line(ready, each * query + head)[None], axis=1) * scale
            score = tl.where(position <= first + query, score, float("-inf"))
            weight = tl.exp(score - tl.max(score, axis=0))
            weight *= 1 / tl.sum(weight, axis=0)
            total = tl.sum(values.to(tl.float32) * weight[:, None], axis=0)
            mixed = tl.where((line == each * query + head)[:, None], total[None], mixed)

    # stores come last, since loads cannot be moved ahead of them
    slot = ((row * POSITIONS + first + step) * KV_HEADS + kv_head) * DIM + (part - QUERIES) * plane
    new = real & (part >= QUERIES)[:, None] & (first_head % share == 0)
    tl.store(cache + slot[:, None] + column[None], ready, mask=new)
    to = ((row * STEPS + step) * HEADS + first_head + part) * DIM
    tl.store(out + to[:, None] + column[None], mixed.to(out.dtype.element_ty), mask=real & is_query)


def short_attention(qkv: Tensor, heads: Heads, cache: Tensor, first: int) -> Tensor:
    batch, steps = qkv.shape[:2]
    _, _, positions, kv_heads, dim = cache.shape
    qkv, cos, sin = qkv.contiguous(), heads.cos.contiguous(), heads.sin.contiguous()
    out = qkv.new_empty(batch, steps, heads.heads, dim, dtype=mixed_dtype(qkv, heads))
    norm, left = heads.q_weight is not None, heads.unscaled
    rows, rows_eps = (qkv, 0.0) if left is None else (left.rows.contiguous(), left.eps)
    share = heads.heads // kv_heads
    queries = share if batch * kv_heads >= _PROCESSORS else 1
    _short_attention[(batch, heads.heads // queries)](
        qkv,
        rows,
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
        rows.shape[-1],
        rows_eps,
        HEADS=heads.heads,
        KV_HEADS=kv_heads,
        DIM=dim,
        STEPS=steps,
        POSITIONS=positions,
        TILE=next_power_of_2(first + steps),
        LINES=next_power_of_2((queries + 2) * steps),
        QUERIES=queries,
        NORM=norm,
        SCALE=left is not None,
        ROW_BLOCK=1 if left is None else next_power_of_2(rows.shape[-1]),
        num_warps=1,
        **launch_options(qkv),
    )
    return out
