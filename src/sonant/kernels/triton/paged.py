"""Grouped-query attention over the paged KV cache, whose block tables it reads on the device.

One program serves one query position and one key-value head; the query heads that share it are packed into one
tile, so keys and values are read once for all of them. How far to read comes from `positions`, so nothing here
depends on a length known to the host and one CUDA graph serves every length.

In a step of one position per row (`paged_step`) the same program also computes its queries and the position's key and
value from the fused projection: it attends to them from registers, and stores them in the cache for later steps. Where
rows and heads are too few for the GPU, several programs share the positions of one row and key-value head, and the last
to arrive merges their partial results.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.reference import Heads
from sonant.kernels.sizes import next_power_of_2
from sonant.kernels.triton.norm_rope import as_cached, gains, norm_rope, partner_of
from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior
from sonant.kernels.triton.scaled_product import mixed_dtype
from sonant.kernels.triton.split_k import arrived_last, counters, workspace

_PROCESSORS = 132  # of an H100 or H200
_MOST_SPLITS = 8  # with more, merging takes longer than attention itself


@triton.jit
def _over_cache(
    tile_q, row_max, row_sum, acc, cache, table, kv_head, first, count, plane, scale,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr, TILE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Online softmax over positions from `first` up to `count`. It continues from the running maximum `row_max`, and
    the running sum `row_sum` and accumulator `acc` relative to it; `acc` / `row_sum` is the output."""
    column = tl.arange(0, DIM)
    for start in range(first, count, TILE):
        index = start + tl.arange(0, TILE)
        seen = index < count
        block = tl.load(table + index // BLOCK_TOKENS, mask=seen, other=0).to(tl.int64)
        at = ((block * BLOCK_TOKENS + index % BLOCK_TOKENS) * KV_HEADS + kv_head) * DIM
        keys = tl.load(cache + at[:, None] + column[None, :], mask=seen[:, None], other=0.0).to(tile_q.dtype)
        values = tl.load(cache + plane + at[:, None] + column[None, :], mask=seen[:, None], other=0.0).to(tile_q.dtype)
        scores = tl.dot(tile_q, tl.trans(keys), input_precision=PRECISION) * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        rescale = tl.exp(row_max - new_max)
        probs = tl.exp(scores - new_max[:, None])
        row_sum = row_sum * rescale + tl.sum(probs, 1)
        acc = acc * rescale[:, None] + tl.dot(probs.to(values.dtype), values, input_precision=PRECISION)
        row_max = new_max
    return row_max, row_sum, acc


@triton.jit
def _reduce_splits(
    row_max, row_sum, acc, partials, arrivals, group, split, real,
    DIM: tl.constexpr, GROUP: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Store this program's partial results; the last program to arrive returns those of all, merged, and True."""
    member, column = tl.arange(0, GROUP), tl.arange(0, DIM)
    cells: tl.constexpr = GROUP * (DIM + 2)
    slot = partials + group * SPLITS * cells
    cell = member[:, None] * DIM + column[None]
    own = slot + split * cells
    tl.store(own + cell, acc, mask=real[:, None])
    tl.store(own + GROUP * DIM + member, row_max, mask=real)
    tl.store(own + GROUP * DIM + GROUP + member, row_sum, mask=real)
    last = arrived_last(arrivals + group, SPLITS)
    if last:
        row_max = tl.full([GROUP], float("-inf"), tl.float32)
        for other in tl.static_range(SPLITS):
            theirs = slot + other * cells + GROUP * DIM + member
            row_max = tl.maximum(row_max, tl.load(theirs, mask=real, other=0.0, cache_modifier=".cg"))
        row_sum = tl.zeros([GROUP], tl.float32)
        acc = tl.zeros([GROUP, DIM], tl.float32)
        for other in tl.static_range(SPLITS):
            theirs = slot + other * cells
            their_max = tl.load(theirs + GROUP * DIM + member, mask=real, other=0.0, cache_modifier=".cg")
            rescale = tl.exp(their_max - row_max)
            their_sum = tl.load(theirs + GROUP * DIM + GROUP + member, mask=real, other=1.0, cache_modifier=".cg")
            row_sum += rescale * their_sum
            acc += rescale[:, None] * tl.load(theirs + cell, mask=real[:, None], other=0.0, cache_modifier=".cg")
    return row_sum, acc, last


@triton.jit
def _attention(
    q, cache, tables, positions, out, plane, table_stride, scale, length,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, TILE: tl.constexpr, GROUP: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    launch_dependents(PDL)
    query = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    member = tl.arange(0, GROUP)
    share: tl.constexpr = HEADS // KV_HEADS
    real = (member < share)[:, None]
    at = (query * HEADS + kv_head * share + member[:, None]) * DIM + tl.arange(0, DIM)[None, :]
    wait_prior(PDL)
    tile_q = tl.load(q + at, mask=real, other=0.0)
    row_max = tl.full([GROUP], float("-inf"), tl.float32)
    row_sum = tl.zeros([GROUP], tl.float32)
    acc = tl.zeros([GROUP, DIM], tl.float32)
    row_max, row_sum, acc = _over_cache(
        tile_q, row_max, row_sum, acc, cache, tables + query // length * table_stride, kv_head, 0,
        tl.load(positions + query) + 1, plane, scale, KV_HEADS, DIM, BLOCK_TOKENS, TILE, PRECISION,
    )  # fmt: skip
    tl.store(out + at, (acc / row_sum[:, None]).to(out.dtype.element_ty), mask=real)


@triton.jit
def _step_attention(
    qkv, q_weight, k_weight, cos, sin, cache, tables, positions, out, partials, arrivals,
    plane, table_stride, position_stride, rope_stride, eps, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, NORM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, TILE: tl.constexpr, GROUP: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    """The function is long, since a program's place, its key and queries, and its epilogue share nearly all values."""
    launch_dependents(PDL)
    row = tl.program_id(0).to(tl.int64)
    kv_head, split = tl.program_id(1), tl.program_id(2)
    member, column = tl.arange(0, GROUP), tl.arange(0, DIM)
    partner = partner_of(column, DIM)
    share: tl.constexpr = HEADS // KV_HEADS
    dtype: tl.constexpr = qkv.dtype.element_ty
    q_gain, q_partner_gain = gains(q_weight, DIM, NORM)
    k_gain, k_partner_gain = gains(k_weight, DIM, NORM)
    real = (member < share)[:, None]
    head = kv_head * share + member
    table = tables + row * table_stride
    source = qkv + row * (HEADS + 2 * KV_HEADS) * DIM
    own = source + head[:, None] * DIM
    fresh = source + (HEADS + kv_head) * DIM
    wait_prior(PDL)
    last = tl.load(positions + row * position_stride)
    c, s = tl.load(cos + row * rope_stride + column), tl.load(sin + row * rope_stride + column)
    key = norm_rope(
        tl.load(fresh + column), tl.load(fresh + partner), k_gain, k_partner_gain, c, s, eps, DIM, NORM, dtype
    )
    # this step, like later ones, uses the key and value as the cache holds them
    kept_key = as_cached(key, cache.dtype.element_ty)
    kept_value = as_cached(tl.load(fresh + KV_HEADS * DIM + column), cache.dtype.element_ty)
    key, value = kept_key.to(dtype), kept_value.to(dtype)
    tile_q = norm_rope(
        tl.load(own + column[None], mask=real, other=0.0), tl.load(own + partner[None], mask=real, other=0.0),
        q_gain[None], q_partner_gain[None], c[None], s[None], eps, DIM, NORM, dtype,
    )  # fmt: skip
    row_max = tl.sum(tile_q.to(tl.float32) * key.to(tl.float32)[None], 1) * scale
    row_sum = tl.full([GROUP], 1.0, tl.float32)
    acc = tl.zeros([GROUP, DIM], tl.float32) + value.to(tl.float32)[None]
    first, end = 0, last
    if SPLITS > 1:  # the new position belongs to the first program
        if split > 0:
            row_max = tl.full([GROUP], float("-inf"), tl.float32)
            row_sum, acc = tl.zeros([GROUP], tl.float32), tl.zeros([GROUP, DIM], tl.float32)
        span = tl.cdiv(tl.cdiv(last, TILE), SPLITS) * TILE
        first = split * span
        end = tl.minimum(first + span, last)
    row_max, row_sum, acc = _over_cache(
        tile_q, row_max, row_sum, acc, cache, table, kv_head, first, end, plane, scale,
        KV_HEADS, DIM, BLOCK_TOKENS, TILE, PRECISION,
    )  # fmt: skip
    if split == 0:
        block = tl.load(table + last // BLOCK_TOKENS).to(tl.int64)
        slot = ((block * BLOCK_TOKENS + last % BLOCK_TOKENS) * KV_HEADS + kv_head) * DIM + column
        tl.store(cache + slot, kept_key)
        tl.store(cache + plane + slot, kept_value)
    complete = True
    if SPLITS > 1:
        group = row * KV_HEADS + kv_head
        row_sum, acc, complete = _reduce_splits(
            row_max, row_sum, acc, partials, arrivals, group, split, member < share, DIM, GROUP, SPLITS
        )
    if complete:
        at = (row * HEADS + head[:, None]) * DIM + column[None]
        tl.store(out + at, (acc / row_sum[:, None]).to(out.dtype.element_ty), mask=real)


def _constants(q: Tensor, heads: int, cache: Tensor) -> dict[str, Any]:
    _, _, block_tokens, kv_heads, dim = cache.shape
    return {
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "DIM": dim,
        "BLOCK_TOKENS": block_tokens,
        "TILE": 64,
        "GROUP": max(16, next_power_of_2(heads // kv_heads)),
        "PRECISION": "ieee" if q.dtype.itemsize == 4 else "tf32",
        "num_warps": 4,
    }


def _splits(programs: int) -> int:
    """Up to four programs per processor; powers of two only, since each number of splits is a kernel to compile."""
    return 1 << max(0, min(_MOST_SPLITS, 4 * _PROCESSORS // programs).bit_length() - 1)


def paged_attention(q: Tensor, cache: Tensor, tables: Tensor, positions: Tensor, span_blocks: int) -> Tensor:
    batch, length, heads, dim = q.shape
    q = q.contiguous()
    out = q.new_empty(q.shape)
    _attention[(batch * length, cache.shape[3])](
        q, cache, tables, positions.contiguous(), out,
        cache.stride(0), tables.stride(0), dim**-0.5, length,
        **_constants(q, heads, cache), **launch_options(q),
    )  # fmt: skip
    return out


def paged_step(qkv: Tensor, heads: Heads, cache: Tensor, tables: Tensor, positions: Tensor, span_blocks: int) -> Tensor:
    batch = len(qkv)
    kv_heads, dim = cache.shape[3:]
    qkv, cos, sin = qkv.contiguous(), heads.cos.contiguous(), heads.sin.contiguous()
    out = qkv.new_empty(batch, 1, heads.heads, dim, dtype=mixed_dtype(qkv, heads))
    norm = heads.q_weight is not None
    constants, splits = _constants(qkv, heads.heads, cache), _splits(batch * kv_heads)
    # counters belong to the engine's whole cache, of which this is one layer, since layers run one after the other
    owner = cache if cache._base is None else cache._base
    _step_attention[(batch, kv_heads, splits)](
        qkv, heads.q_weight if norm else qkv, heads.k_weight if norm else qkv, cos, sin,
        cache, tables, positions, out,
        workspace(qkv, batch * kv_heads, splits, constants["GROUP"] * (dim + 2)),
        counters(owner, batch * kv_heads, splits),
        cache.stride(0), tables.stride(0), positions.stride(0), 0 if len(cos) == 1 else dim, heads.eps, dim**-0.5,
        NORM=norm, SPLITS=splits, **constants, **launch_options(qkv),
    )  # fmt: skip
    return out
