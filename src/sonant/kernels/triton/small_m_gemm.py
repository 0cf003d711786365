"""Matrix products with a few rows on tensor cores, as fast as the weights can be read.

A program takes one strip of columns over all or a part of the depth. It issues the load of its first tile of weights
before it waits for its input; the others follow through shared memory. Programs of one strip that split the depth add
up their partial sums (split_k.py), and the norm's scale, a factor of the whole row, is applied at the end. Weights are
the left operand of the product: a warp then owns the columns it computes, and only the few rows of the input are
shared. Folded, warps own slices of the depth instead, when rows and columns are too few for all of them.

Weights of eight bits are loaded and buffered as such, and widened to the input's dtype just before the product. A
column's scale is a factor of its sum, and is applied last.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.reference import Weight, parts_of
from sonant.kernels.sizes import cdiv, next_power_of_2
from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior
from sonant.kernels.triton.small_m_tile import ROWS, block_depth, tile_for
from sonant.kernels.triton.split_k import arrived_last, counters, sum_partials, workspace
from sonant.kernels.tuning import Tile


@triton.jit
def _values(x, gain, row, k, depth, NORM: tl.constexpr):
    """Input [K, M], scaled by the norm's gain, and each row's sum of squares."""
    value = tl.load(x + row[None] * depth + k[:, None])
    square = tl.zeros([row.shape[0]], tl.float32)
    if NORM:
        wide = value.to(tl.float32)
        square = tl.sum(wide * wide, axis=0)
        value = (wide * tl.load(gain + k).to(tl.float32)[:, None]).to(value.dtype)
    return value, square


@triton.jit
def column_scales(scale, column, columns, GATED: tl.constexpr, SCALED: tl.constexpr):
    """Scales of quantised columns and, if gated, of those of the other half. They are loaded with the weights, before
    there is input: at the end the program would wait for them."""
    own = tl.full(column.shape, 1.0, tl.float32)
    up = own
    if SCALED:
        there = tl.minimum(column, columns - 1)
        own = tl.load(scale + there)
        if GATED:
            up = tl.load(scale + columns + there)
    return own, up


@triton.jit
def _plus_product(total, own, value, FOLD: tl.constexpr, PRECISION: tl.constexpr):
    if FOLD > 1:
        deep: tl.constexpr = own.shape[1] // FOLD
        own = tl.permute(tl.reshape(own, (own.shape[0], FOLD, deep)), (1, 0, 2))
        value = tl.reshape(value, (FOLD, deep, value.shape[1]))
    return tl.dot(own.to(value.dtype), value, total, input_precision=PRECISION)


@triton.jit
def _swiglu(gate, up):
    """SwiGLU, rounded where the reference rounds."""
    wide = gate.to(tl.float32)
    silu = (wide / (1 + tl.exp(-wide))).to(gate.dtype).to(tl.float32)
    return silu * up.to(tl.float32)


@triton.jit
def _finish(
    total, other, square, own_scale, up_scale, residual, out, row, column, rows, columns, depth, eps,
    NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    dtype = out.dtype.element_ty
    if NORM:
        factor = tl.rsqrt(square / depth + eps)[None]
        total *= factor
        other *= factor
    if SCALED:
        total *= own_scale[:, None]
        other *= up_scale[:, None]
    if GATED:
        total = _swiglu(total.to(dtype), other.to(dtype))
    at = row[None] * columns + column[:, None]
    mask = (row < rows)[None] & (column < columns)[:, None]
    if ADD:
        total = tl.load(residual + at, mask=mask, other=0.0).to(tl.float32) + total.to(dtype).to(tl.float32)
    tl.store(out + at, total.to(dtype), mask=mask)


@triton.jit
def _reduce(
    total, other, square, partials, squares, arrivals, strip, split,
    NORM: tl.constexpr, GATED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Store this program's partial sums; the last program to arrive returns the sums of all, and True."""
    planes: tl.constexpr = 2 if GATED else 1
    cells: tl.constexpr = planes * BLOCK_M * BLOCK_N
    row = tl.arange(0, BLOCK_M)
    cell = tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + row[None]
    slot, norms = partials + strip * SPLITS * cells, squares + strip * SPLITS * BLOCK_M
    tl.store(slot + split * cells + cell, total)
    if GATED:
        tl.store(slot + split * cells + BLOCK_M * BLOCK_N + cell, other)
    if NORM:
        tl.store(norms + split * BLOCK_M + row, square)
    last = arrived_last(arrivals + strip, SPLITS)
    if last:
        total = sum_partials(slot, cell, SPLITS, cells)
        if GATED:
            other = sum_partials(slot + BLOCK_M * BLOCK_N, cell, SPLITS, cells)
        if NORM:
            square = sum_partials(norms, row, SPLITS, BLOCK_M)
    return total, other, square, last


@triton.jit(do_not_specialize=["rows", "k_tiles"])
def _small_m_gemm(
    x, weight, scale, gain, residual, out, partials, squares, arrivals, rows, columns, depth, k_tiles, eps,
    NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, SCALED: tl.constexpr, PDL: tl.constexpr,
    PRECISION: tl.constexpr, LOOP: tl.constexpr, FOLD: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    launch_dependents(PDL)
    strip, split = tl.program_id(0), tl.program_id(1)
    row = tl.arange(0, BLOCK_M)
    column = strip * BLOCK_N + tl.arange(0, BLOCK_N)
    k = split * k_tiles * BLOCK_K + tl.arange(0, BLOCK_K)
    # rows and columns past the end repeat the last ones; their results are not stored
    there = tl.minimum(row, rows - 1)
    start = weight + tl.minimum(column, columns - 1).to(tl.int64)[:, None] * depth
    up_start = start + columns.to(tl.int64) * depth
    own = tl.load(start + k[None])
    up = own
    if GATED:
        up = tl.load(up_start + k[None])
    own_scale, up_scale = column_scales(scale, column, columns, GATED, SCALED)
    wait_prior(PDL)
    value, square = _values(x, gain, there, k, depth, NORM)
    total = tl.zeros([FOLD, BLOCK_N, BLOCK_M] if FOLD > 1 else [BLOCK_N, BLOCK_M], tl.float32)
    other = total
    if LOOP:
        for k_tile in range(1, k_tiles):
            at = k + k_tile * BLOCK_K
            next_value, next_square = _values(x, gain, there, at, depth, NORM)
            square += next_square
            total = _plus_product(total, tl.load(start + at[None]), next_value, FOLD, PRECISION)
            if GATED:
                other = _plus_product(other, tl.load(up_start + at[None]), next_value, FOLD, PRECISION)
    # the first tile comes last, so that the loop's loads are in flight together with its own
    total = _plus_product(total, own, value, FOLD, PRECISION)
    if GATED:
        other = _plus_product(other, up, value, FOLD, PRECISION)
    if FOLD > 1:
        total, other = tl.sum(total, axis=0), tl.sum(other, axis=0)

    last = True
    if SPLITS > 1:
        total, other, square, last = _reduce(
            total, other, square, partials, squares, arrivals, strip, split, NORM, GATED, BLOCK_M, BLOCK_N, SPLITS
        )
    if last:
        _finish(
            total, other, square, own_scale, up_scale, residual, out, row, column, rows, columns, depth, eps,
            NORM, GATED, ADD, SCALED,
        )  # fmt: skip


def fits(rows: int, depth: int) -> bool:
    return rows <= ROWS and block_depth(depth) >= 16


def product(
    x: Tensor, weight: Weight, out: Tensor, *, gain: Tensor | None, eps: float, gated: bool, residual: Tensor | None,
    tile: Tile | None = None,
) -> bool:  # fmt: skip
    """Fill `out` [rows, columns] with x [rows, depth] times weight [columns (twice if gated), depth], norm and
    sum included.

    False: the library is known to be faster, and nothing was done. `tile` is what a tuner tries; None: the best known.
    """
    rows, depth = x.shape
    columns = out.shape[1]
    values, scale = parts_of(weight)
    tile = tile or tile_for(x, values, columns, gated, norm=gain is not None)
    if tile.library:
        return False
    block_m = max(16, next_power_of_2(rows))
    strips = cdiv(columns, tile.n)
    k_tiles = depth // (tile.k * tile.splits)
    if k_tiles * tile.k * tile.splits != depth:
        raise ValueError(f"{tile} does not divide a depth of {depth}")
    squares = strips * tile.splits * block_m
    partials = workspace(x, strips, tile.splits, ((2 if gated else 1) * tile.n + 1) * block_m)
    _small_m_gemm[(strips, tile.splits)](
        x, values, x if scale is None else scale, x if gain is None else gain, out if residual is None else residual,
        out, partials, partials[max(0, partials.numel() - squares) :], counters(values, strips, tile.splits),
        rows=rows, columns=columns, depth=depth, k_tiles=k_tiles, eps=eps,
        NORM=gain is not None, GATED=gated, ADD=residual is not None, SCALED=scale is not None,
        PRECISION="ieee" if x.dtype.itemsize == 4 else "tf32", LOOP=k_tiles > 1, FOLD=tile.fold,
        BLOCK_M=block_m, BLOCK_N=tile.n, BLOCK_K=tile.k, SPLITS=tile.splits,
        num_warps=tile.warps, num_stages=tile.stages, **launch_options(x),
    )  # fmt: skip
    return True
