"""Grouped-query attention over the paged KV cache, whose block tables it reads on the device.

One program serves one query position and one key-value head; the query heads that share it are packed into one
tile, so keys and values are read once for all of them. How far to read comes from `positions`, so nothing here
depends on a length known to the host and one CUDA graph serves every length.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.triton.early import begin, options, wait


@triton.jit
def _attention(
    q, cache, tables, positions, out, plane, table_stride, scale, length,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, TILE: tl.constexpr, GROUP: tl.constexpr, PRECISION: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    query = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    row = query // length
    member = tl.arange(0, GROUP)
    column = tl.arange(0, DIM)
    share: tl.constexpr = HEADS // KV_HEADS
    real = member < share
    head = kv_head * share + member
    q_at = (query * HEADS + head[:, None]) * DIM + column[None, :]
    wait(EARLY)
    tile_q = tl.load(q + q_at, mask=real[:, None], other=0.0)
    last = tl.load(positions + query)
    best = tl.full([GROUP], float("-inf"), tl.float32)
    weight = tl.zeros([GROUP], tl.float32)
    total = tl.zeros([GROUP, DIM], tl.float32)
    for start in range(0, last + 1, TILE):
        index = start + tl.arange(0, TILE)
        seen = index <= last
        block = tl.load(tables + row * table_stride + index // BLOCK_TOKENS, mask=seen, other=0).to(tl.int64)
        at = ((block * BLOCK_TOKENS + index % BLOCK_TOKENS) * KV_HEADS + kv_head) * DIM
        keys = tl.load(cache + at[:, None] + column[None, :], mask=seen[:, None], other=0.0)
        values = tl.load(cache + plane + at[:, None] + column[None, :], mask=seen[:, None], other=0.0)
        scores = tl.dot(tile_q, tl.trans(keys), input_precision=PRECISION) * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        highest = tl.maximum(best, tl.max(scores, 1))
        shrink = tl.exp(best - highest)
        share_of = tl.exp(scores - highest[:, None])
        weight = weight * shrink + tl.sum(share_of, 1)
        total = total * shrink[:, None] + tl.dot(share_of.to(values.dtype), values, input_precision=PRECISION)
        best = highest
    tl.store(out + q_at, (total / weight[:, None]).to(out.dtype.element_ty), mask=real[:, None])


def paged_attention(q: Tensor, cache: Tensor, tables: Tensor, positions: Tensor, span_blocks: int) -> Tensor:
    batch, length, heads, dim = q.shape
    _, _, block_tokens, kv_heads, _ = cache.shape
    q = q.contiguous()
    out = q.new_empty(q.shape)
    _attention[(batch * length, kv_heads)](
        q,
        cache,
        tables,
        positions.contiguous(),
        out,
        cache.stride(0),
        tables.stride(0),
        dim**-0.5,
        length,
        HEADS=heads,
        KV_HEADS=kv_heads,
        DIM=dim,
        BLOCK_TOKENS=block_tokens,
        TILE=16 if block_tokens * tables.shape[1] <= 16 else 64,
        GROUP=max(16, triton.next_power_of_2(heads // kv_heads)),
        PRECISION="ieee" if q.dtype.itemsize == 4 else "tf32",
        num_warps=4,
        **options(q),
    )
    return out
