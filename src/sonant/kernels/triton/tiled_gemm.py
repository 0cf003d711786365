"""Matrix products in tiles of rows and columns, with a fused epilogue: both operands have 16 bits, or eight, where a
row's scale times a column's is a factor of the sum.

The epilogue is what the library's product leaves to other kernels: SwiGLU of the two halves, and the residual sum. All
tiles of rows come before the next columns begin, so that weights are read from memory once. Programs that share a
tile's depth add up their partial sums (split_k.py). With few rows a product mostly waits for its weights, so a program
may prefetch all of its own before it waits for the kernel that computes its input: not into registers or shared memory,
all of which the loop needs, but into the L2 cache. Rows are the left operand here, of which tensor cores take 64 lines
at a time, so that tiles can have few columns.
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
from sonant.kernels.tuning import Tile


@triton.jit
def _reduce(
    total, other, partials, arrivals, tile, split,
    GATED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Store this program's partial sums; the last program to arrive returns the sums of all, and True."""
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
    """The epilogue; each result is rounded where the reference rounds it."""
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
def _fetch_ahead(weight, line, depth, first, count, PIECES: tl.constexpr):
    """Prefetch `count` values of each of these lines into L2, from the `first` on, in PIECES pieces per line."""
    item: tl.constexpr = weight.dtype.element_ty.primitive_bitwidth // 8
    size = count * item // PIECES
    at = (weight + line.to(tl.int64)[:, None] * depth + first).to(tl.int64) + tl.arange(0, PIECES)[None] * size
    ask: tl.constexpr = "cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;"
    tl.inline_asm_elementwise(ask, "=r,l,r", [at, size], tl.int32, is_pure=False, pack=1)


@triton.jit(do_not_specialize=["rows", "row_tiles", "k_tiles"])
def _tiled_gemm(
    x, row_scale, weight, scale, residual, out, partials, arrivals, rows, row_tiles, columns, depth, k_tiles,
    SCALED: tl.constexpr, ROWS_SCALED: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, PDL: tl.constexpr,
    PIECES: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    launch_dependents(PDL)
    tile, split = tl.program_id(0), tl.program_id(1)
    row = (tile % row_tiles) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = (tile // row_tiles) * BLOCK_N + tl.arange(0, BLOCK_N)
    # rows and columns past the end repeat the last ones; their results are not stored
    there, line = tl.minimum(row, rows - 1), tl.minimum(column, columns - 1)
    first = split * k_tiles * BLOCK_K
    if PDL and PIECES > 0:  # noqa: SIM102
        if tile % row_tiles == 0:  # programs of other rows read the same weights
            _fetch_ahead(weight, line, depth, first, k_tiles * BLOCK_K, PIECES)
            if GATED:
                _fetch_ahead(weight, columns + line, depth, first, k_tiles * BLOCK_K, PIECES)
    k = first + tl.arange(0, BLOCK_K)
    given = x + there.to(tl.int64)[:, None] * depth + k[None]
    own = weight + line.to(tl.int64)[None] * depth + k[:, None]
    up = own + columns.to(tl.int64) * depth
    own_scale, up_scale = column_scales(scale, column, columns, GATED, SCALED)
    wait_prior(PDL)
    factor = tl.full([BLOCK_M], 1.0, tl.float32)
    if ROWS_SCALED:
        factor = tl.load(row_scale + there)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    other = total
    for k_tile in range(k_tiles):
        value = tl.load(given + k_tile * BLOCK_K)
        total = tl.dot(value, tl.load(own + k_tile * BLOCK_K), total, input_precision=PRECISION)
        if GATED:
            other = tl.dot(value, tl.load(up + k_tile * BLOCK_K), other, input_precision=PRECISION)
    last = True
    if SPLITS > 1:
        total, other, last = _reduce(
            total, other, partials, arrivals, tile, split, GATED, BLOCK_M, BLOCK_N, SPLITS
        )  # fmt: skip
    if last:
        _finish(total, other, factor, own_scale, up_scale, residual, out, row, column, rows, columns, GATED, ADD)


def _pieces(tile: Tile, line_bytes: int) -> int:
    """Pieces of a prefetched line: one per thread if each is a multiple of 16 bytes, else one; 0: no prefetch."""
    if not tile.ahead:
        return 0
    pieces = max(1, 32 * tile.warps // tile.n)
    return pieces if line_bytes % (16 * pieces) == 0 else 1


def tiled_gemm(
    x: Tensor, weight: Weight, out: Tensor, tile: Tile, *, row_scale: Tensor | None = None,
    residual: Tensor | None = None, gated: bool = False,
) -> None:  # fmt: skip
    """Fill `out` [rows, columns] with x [rows, depth] times weight [columns (twice if gated), depth], and apply
    the epilogue.

    `row_scale`: of x, where both operands have eight bits; None: x has no scale.
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
        workspace(x, tiles, tile.splits, (2 if gated else 1) * tile.n * tile.m),
        counters(values, tiles, tile.splits), rows, row_tiles, columns, depth, k_tiles,
        SCALED=scale is not None, ROWS_SCALED=row_scale is not None, GATED=gated, ADD=residual is not None,
        PIECES=_pieces(tile, k_tiles * tile.k * x.dtype.itemsize),
        PRECISION="ieee" if x.dtype.itemsize == 4 else "tf32",
        BLOCK_M=tile.m, BLOCK_N=tile.n, BLOCK_K=tile.k, SPLITS=tile.splits,
        num_warps=tile.warps, num_stages=tile.stages, **launch_options(x),
    )  # fmt: skip
