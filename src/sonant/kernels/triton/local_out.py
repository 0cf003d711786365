# mypy: disable-error-code="assignment"
"""The middle of a layer over a few positions that all see each other: attention, output projection and residual sum.

A program takes a strip of the output's columns and some of the heads, and issues the loads of their weights before it
waits for the fused projection. It computes those heads' outputs for all sequences at once: sequences are blocks of one
tile, and scores outside of a query's own block are masked. Each strip recomputes them, which costs less than a kernel
between the two. Programs of one strip add up their partial sums (split_k.py). Where there are more rows than a tile
should have, or a measurement says so, attention and projection are two kernels.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.reference import Heads, Weight, parts_of
from sonant.kernels.sizes import cdiv, next_power_of_2
from sonant.kernels.triton import gemv
from sonant.kernels.triton.local import local_attention
from sonant.kernels.triton.local_tile import fits, tile_for
from sonant.kernels.triton.norm_rope import gains, norm_rope, partner_of
from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior
from sonant.kernels.triton.small_m_gemm import column_scales
from sonant.kernels.triton.split_k import arrived_last, counters, sum_partials, workspace
from sonant.kernels.tuning import Tile


@triton.jit
def _made_ready(
    qkv, weight, cos, sin, place, there, angle, eps, WIDTH: tl.constexpr, DIM: tl.constexpr, NORM: tl.constexpr
):
    """One head [rows, DIM] of all lines, normed and rotated."""
    column = tl.arange(0, DIM)
    gain, partner_gain = gains(weight, DIM, NORM)
    source = qkv + (there * WIDTH + place * DIM)[:, None]
    turn = angle[:, None] + column[None]
    return norm_rope(
        tl.load(source + column[None]), tl.load(source + partner_of(column, DIM)[None]), gain[None],
        partner_gain[None], tl.load(cos + turn), tl.load(sin + turn), eps, DIM, NORM, qkv.dtype.element_ty,
    )  # fmt: skip


@triton.jit
def _kept_apart(values, visible):
    """The values [rows, DIM], zero where they are infinite or NaN, and which lines see such a value: in the product of
    all sequences at once a weight of zero would not keep these from the others."""
    numbers = tl.abs(values.to(tl.float32)) < float("inf")
    strange = tl.max(tl.where(numbers, 0, 1), 1)
    return tl.where(numbers, values, tl.zeros_like(values)), tl.max(tl.where(visible, strange[None], 0), 1) > 0


@triton.jit(do_not_specialize=["rows"])
def _local_attention_add(
    qkv, q_weight, k_weight, cos, sin, weight, column_scale, residual, out, partials, arrivals,
    rows, columns, rope_stride, eps, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, STEPS: tl.constexpr, LINES: tl.constexpr,
    NORM: tl.constexpr, SEVERAL: tl.constexpr, SCALED: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
    BLOCK_N: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    launch_dependents(PDL)
    strip, split = tl.program_id(0), tl.program_id(1)
    own_heads: tl.constexpr = HEADS // SPLITS
    first = split * own_heads
    kv_head = first // (HEADS // KV_HEADS)
    dim, line = tl.arange(0, DIM), tl.arange(0, LINES)
    column = strip * BLOCK_N + tl.arange(0, BLOCK_N)
    # columns and lines past the end repeat the last ones; their results are not stored
    start = weight + tl.minimum(column, columns - 1).to(tl.int64)[:, None] * (HEADS * DIM) + first * DIM + dim[None]
    tiles = ()  # one for each head; Triton cannot unpack into a tuple
    for head in tl.static_range(own_heads):
        tiles = tiles + (tl.load(start + head * DIM),)  # noqa: RUF005
    own_scale, _ = column_scales(column_scale, column, columns, False, SCALED)
    there = tl.minimum(line, rows - 1)
    sequence = there // STEPS
    angle = sequence * rope_stride + there % STEPS * DIM
    visible = (sequence[:, None] == sequence[None]) & (line < rows)[None]
    width: tl.constexpr = HEADS + 2 * KV_HEADS
    wait_prior(PDL)
    keys = _made_ready(qkv, k_weight, cos, sin, HEADS + kv_head, there, angle, eps, width * DIM, DIM, NORM)
    values = tl.load(qkv + (there * width * DIM + (HEADS + KV_HEADS + kv_head) * DIM)[:, None] + dim[None])
    if SEVERAL:
        values, strange = _kept_apart(values, visible)
    total = tl.zeros([LINES, BLOCK_N], tl.float32)
    for head in tl.static_range(own_heads):
        queries = _made_ready(qkv, q_weight, cos, sin, first + head, there, angle, eps, width * DIM, DIM, NORM)
        scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * scale
        scores = tl.where(visible, scores, float("-inf"))
        share = tl.exp(scores - tl.max(scores, 1)[:, None])
        mixed = tl.dot(share.to(values.dtype), values, input_precision=PRECISION) / tl.sum(share, 1)[:, None]
        if SEVERAL:
            mixed = tl.where(strange[:, None], float("nan"), mixed)
        total = tl.dot(mixed.to(values.dtype), tl.trans(tiles[head].to(values.dtype)), total, input_precision=PRECISION)
    last = True
    if SPLITS > 1:
        cells: tl.constexpr = LINES * BLOCK_N
        cell = line[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None]
        slot = partials + strip * SPLITS * cells
        tl.store(slot + split * cells + cell, total)
        last = arrived_last(arrivals + strip, SPLITS)
        if last:
            total = sum_partials(slot, cell, SPLITS, cells)
    if last:
        if SCALED:
            total *= own_scale[None]
        dtype = out.dtype.element_ty
        at = line[:, None] * columns + column[None]
        mask = (line < rows)[:, None] & (column < columns)[None]
        before = tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(out + at, (before + total.to(dtype).to(tl.float32)).to(dtype), mask=mask)


def local_attention_add(
    qkv: Tensor, heads: Heads, weight: Weight, residual: Tensor, *, tile: Tile | None = None
) -> Tensor:
    batch, steps, width = qkv.shape
    rows, columns, (read, column_scale) = batch * steps, weight.shape[0], parts_of(weight)
    dim = width // (heads.heads + 2 * heads.kv_heads)
    tile = tile or tile_for(qkv, heads, read)
    if tile.library or not weight.is_contiguous() or (column_scale is None and qkv.dtype != read.dtype):
        return gemv.linear_add(local_attention(qkv, heads).flatten(2), weight, residual)
    if not fits(tile, heads):
        raise ValueError(f"{tile} does not divide {heads.heads} heads of {heads.kv_heads} groups")
    qkv, cos, sin, residual = (x.contiguous() for x in (qkv, heads.cos, heads.sin, residual))
    out = qkv.new_empty(batch, steps, columns)
    norm = heads.q_weight is not None
    lines, strips = max(16, next_power_of_2(rows)), cdiv(columns, tile.n)
    _local_attention_add[(strips, tile.splits)](
        qkv, heads.q_weight if norm else qkv, heads.k_weight if norm else qkv, cos, sin,
        read, qkv if column_scale is None else column_scale, residual, out,
        workspace(qkv, strips, tile.splits, lines * tile.n), counters(read, strips, tile.splits),
        rows=rows, columns=columns, rope_stride=0 if len(cos) == 1 else steps * dim, eps=heads.eps, scale=dim**-0.5,
        HEADS=heads.heads, KV_HEADS=heads.kv_heads, DIM=dim, STEPS=steps, LINES=lines, NORM=norm,
        SEVERAL=batch > 1, SCALED=column_scale is not None, PRECISION="ieee" if qkv.dtype.itemsize == 4 else "tf32",
        BLOCK_N=tile.n, SPLITS=tile.splits, num_warps=tile.warps, **launch_options(qkv),
    )  # fmt: skip
    return out
