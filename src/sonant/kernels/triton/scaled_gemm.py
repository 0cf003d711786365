"""Matrix products with eight bits on both sides: a row's scale times a column's is a factor of the sum.

What the library's product leaves to others is part of it: SwiGLU of the two halves, or the residual sum. All tiles of
rows follow each other before the next columns begin, so that weights come from memory once. Programs that share a
tile's depth add up as split_k.py says. With few rows the first of a program's weights are on their way before it waits
for the kernel that makes its input, as in small_m_gemm.py.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.reference import QuantizedWeight
from sonant.kernels.sizes import cdiv
from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior
from sonant.kernels.triton.scaled_tile import FEW_ROWS
from sonant.kernels.triton.small_m_gemm import column_scales
from sonant.kernels.triton.split_k import arrived_last, counters, sum_partials, workspace
from sonant.kernels.tuning import Tile


@triton.jit
def _reduce(
    total, other, partials, arrivals, tile, split,
    GATED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Leave this program's sums; whoever comes last has those of all, and is told so."""
    plane: tl.constexpr = BLOCK_M * BLOCK_N
    cells: tl.constexpr = (2 if GATED else 1) * plane
    cell = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None]
    slot = partials + tile.to(tl.int64) * SPLITS * cells
    tl.store(slot + split * cells + cell, total)
    if GATED:
        tl.store(slot + split * cells + plane + cell, other)
    last = arrived_last(arrivals + tile, SPLITS)
    if last:
        total = sum_partials(slot, cell, SPLITS, cells)
        if GATED:
            other = sum_partials(slot + plane, cell, SPLITS, cells)
    return total, other, last


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


@triton.jit(do_not_specialize=["rows", "row_tiles", "k_tiles"])
def _scaled_gemm(
    x, row_scale, weight, scale, residual, out, partials, arrivals, rows, row_tiles, columns, depth, k_tiles,
    GATED: tl.constexpr, ADD: tl.constexpr, PDL: tl.constexpr, EARLY: tl.constexpr,
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
    own_scale, up_scale = column_scales(scale, column, columns, GATED, True)
    if EARLY:
        first_own = tl.load(own)
        if GATED:
            first_up = tl.load(up)
    wait_prior(PDL)
    factor = tl.load(row_scale + there)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    other = total
    if EARLY:
        value = tl.load(given)
        total = tl.dot(value, first_own, total)
        if GATED:
            other = tl.dot(value, first_up, other)
    for k_tile in range(1 if EARLY else 0, k_tiles):
        value = tl.load(given + k_tile * BLOCK_K)
        total = tl.dot(value, tl.load(own + k_tile * BLOCK_K), total)
        if GATED:
            other = tl.dot(value, tl.load(up + k_tile * BLOCK_K), other)
    last = True
    if SPLITS > 1:
        total, other, last = _reduce(total, other, partials, arrivals, tile, split, GATED, BLOCK_M, BLOCK_N, SPLITS)
    if last:
        _finish(total, other, factor, own_scale, up_scale, residual, out, row, column, rows, columns, GATED, ADD)


def scaled_gemm(
    x: Tensor, row_scale: Tensor, weight: QuantizedWeight, out: Tensor, residual: Tensor | None, gated: bool, tile: Tile
) -> None:
    """Fill `out` [rows, columns] with x [rows, depth] times weight [columns (twice if gated), depth], and the rest."""
    (rows, depth), columns = x.shape, out.shape[1]
    row_tiles, strips = cdiv(rows, tile.m), cdiv(columns, tile.n)
    tiles, k_tiles = row_tiles * strips, depth // (tile.k * tile.splits)
    if k_tiles * tile.k * tile.splits != depth:
        raise ValueError(f"{tile} does not divide a depth of {depth}")
    _scaled_gemm[(tiles, tile.splits)](
        x, row_scale, weight.values, weight.scale, out if residual is None else residual, out,
        workspace(x, tiles, tile.splits, (2 if gated else 1) * tile.m * tile.n),
        counters(weight.values, tiles, tile.splits), rows, row_tiles, columns, depth, k_tiles,
        GATED=gated, ADD=residual is not None, EARLY=rows <= FEW_ROWS,
        BLOCK_M=tile.m, BLOCK_N=tile.n, BLOCK_K=tile.k, SPLITS=tile.splits,
        num_warps=tile.warps, num_stages=tile.stages, **launch_options(x),
    )  # fmt: skip
