"""Matrix products in tiles of rows and columns, with what is around them inside: both sides in 16 bits, or in eight,
where a row's scale times a column's is a factor of the sum.

What the library's product leaves to others is part of it: SwiGLU of the two halves, the residual sum, and of a norm
whose gain is in the weights the factor of each row. All tiles of rows follow each other before the next columns begin,
so that weights come from memory once. Programs that share a tile's depth add up as split_k.py says. With few rows the
first of a program's weights are on their way before it waits for the kernel that makes its input, as in
small_m_gemm.py; but rows are the left side here, which tensor cores want 64 of, so that tiles can have few columns.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.reference import Weight, parts_of
from sonant.kernels.sizes import cdiv
from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior
from sonant.kernels.triton.small_m_gemm import column_scales
from sonant.kernels.triton.split_k import arrived_last, counters, sum_partials, workspace
from sonant.kernels.triton.tiled_tile import FEW_ROWS
from sonant.kernels.tuning import Tile


@triton.jit
def _reduce(
    total, other, square, partials, arrivals, tile, split,
    GATED: tl.constexpr, NORM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Leave this program's sums; whoever comes last has those of all, and is told so."""
    plane: tl.constexpr = BLOCK_M * BLOCK_N
    planes: tl.constexpr = (2 if GATED else 1) * plane
    cells: tl.constexpr = planes + BLOCK_M
    row = tl.arange(0, BLOCK_M)
    cell = row[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None]
    slot = partials + tile.to(tl.int64) * SPLITS * cells
    tl.store(slot + split * cells + cell, total)
    if GATED:
        tl.store(slot + split * cells + plane + cell, other)
    if NORM:
        tl.store(slot + split * cells + planes + row, square)
    last = arrived_last(arrivals + tile, SPLITS)
    if last:
        total = sum_partials(slot, cell, SPLITS, cells)
        if GATED:
            other = sum_partials(slot + plane, cell, SPLITS, cells)
        if NORM:
            square = sum_partials(slot + planes, row, SPLITS, cells)
    return total, other, square, last


@triton.jit
def _finish(
    total, other, factor, own_scale, up_scale, residual, out, row, column, rows, columns,
    GATED: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Each result is rounded where the reference rounds it."""
    dtype = out.dtype.element_ty
    total = (total * factor[:, None] * own_scale[None]).to(dtype).to(tl.float32)
    if GATED:
        silu = (total / (1 + tl.exp(-total))).to(dtype).to(tl.float32)
        total = silu * (other * factor[:, None] * up_scale[None]).to(dtype).to(tl.float32)
    at = row[:, None] * columns + column[None]
    mask = (row < rows)[:, None] & (column < columns)[None]
    if ADD:
        total += tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(dtype), mask=mask)


@triton.jit
def _squares(value, NORM: tl.constexpr):
    """Of each row, summed."""
    square = tl.zeros([value.shape[0]], tl.float32)
    if NORM:
        wide = value.to(tl.float32)
        square = tl.sum(wide * wide, axis=1)
    return square


@triton.jit(do_not_specialize=["rows", "row_tiles", "k_tiles"])
def _tiled_gemm(
    x, row_scale, weight, scale, residual, out, partials, arrivals, rows, row_tiles, columns, depth, k_tiles, eps,
    SCALED: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, PDL: tl.constexpr,
    EARLY: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    launch_dependents(PDL)
    tile, split = tl.program_id(0), tl.program_id(1)
    row = (tile % row_tiles) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = (tile // row_tiles) * BLOCK_N + tl.arange(0, BLOCK_N)
    # rows and columns past the end are the last ones again: what comes of them is not stored
    there = tl.minimum(row, rows - 1)
    k = split * k_tiles * BLOCK_K + tl.arange(0, BLOCK_K)
    given = x + there.to(tl.int64)[:, None] * depth + k[None]
    own = weight + tl.minimum(column, columns - 1).to(tl.int64)[None] * depth + k[:, None]
    up = own + columns.to(tl.int64) * depth
    own_scale, up_scale = column_scales(scale, column, columns, GATED, SCALED)
    if EARLY:
        first_own = tl.load(own)
        if GATED:
            first_up = tl.load(up)
    wait_prior(PDL)
    factor = tl.full([BLOCK_M], 1.0, tl.float32)
    if SCALED:
        factor = tl.load(row_scale + there)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    other = total
    square = tl.zeros([BLOCK_M], tl.float32)
    if EARLY:
        value = tl.load(given)
        square = _squares(value, NORM)
        total = tl.dot(value, first_own, total, input_precision=PRECISION)
        if GATED:
            other = tl.dot(value, first_up, other, input_precision=PRECISION)
    for k_tile in range(1 if EARLY else 0, k_tiles):
        value = tl.load(given + k_tile * BLOCK_K)
        square += _squares(value, NORM)
        total = tl.dot(value, tl.load(own + k_tile * BLOCK_K), total, input_precision=PRECISION)
        if GATED:
            other = tl.dot(value, tl.load(up + k_tile * BLOCK_K), other, input_precision=PRECISION)
    last = True
    if SPLITS > 1:
        total, other, square, last = _reduce(
            total, other, square, partials, arrivals, tile, split, GATED, NORM, BLOCK_M, BLOCK_N, SPLITS
        )
    if last:
        if NORM:
            factor *= tl.rsqrt(square / depth + eps)
        _finish(total, other, factor, own_scale, up_scale, residual, out, row, column, rows, columns, GATED, ADD)


def tiled_gemm(
    x: Tensor, weight: Weight, out: Tensor, tile: Tile, *, row_scale: Tensor | None = None,
    residual: Tensor | None = None, gated: bool = False, eps: float | None = None,
) -> None:  # fmt: skip
    """Fill `out` [rows, columns] with x [rows, depth] times weight [columns (twice if gated), depth], and the rest.

    `row_scale`: of x, where both sides have eight bits. `eps`: a norm's, whose gain is in the weight, of rows that were
    not normed yet.
    """
    (rows, depth), columns = x.shape, out.shape[1]
    row_tiles, strips = cdiv(rows, tile.m), cdiv(columns, tile.n)
    tiles, k_tiles = row_tiles * strips, depth // (tile.k * tile.splits)
    if k_tiles * tile.k * tile.splits != depth:
        raise ValueError(f"{tile} does not divide a depth of {depth}")
    values, scale = parts_of(weight)
    _tiled_gemm[(tiles, tile.splits)](
        x, x if row_scale is None else row_scale, values, x if scale is None else scale,
        out if residual is None else residual, out,
        workspace(x, tiles, tile.splits, ((2 if gated else 1) * tile.n + 1) * tile.m),
        counters(values, tiles, tile.splits), rows, row_tiles, columns, depth, k_tiles, 0.0 if eps is None else eps,
        SCALED=row_scale is not None, NORM=eps is not None, GATED=gated, ADD=residual is not None,
        EARLY=rows <= FEW_ROWS, PRECISION="ieee" if x.dtype.itemsize == 4 else "tf32",
        BLOCK_M=tile.m, BLOCK_N=tile.n, BLOCK_K=tile.k, SPLITS=tile.splits,
        num_warps=tile.warps, num_stages=tile.stages, **launch_options(x),
    )  # fmt: skip
