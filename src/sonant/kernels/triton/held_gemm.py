# mypy: disable-error-code="assignment,var-annotated"
"""Matrix products with a few rows whose programs hold all their weights before there is any input.

What a small product costs is not its bytes but what comes one after another once the kernel before it has ended: its
input, the sum with others that share the depth, the residual. So everything that needs no input (weights, the norm's
gain) is asked for before the wait, everything else right after it at once, and few programs or none share a depth: rows
are the left side of the product, so that a program may have as few as eight columns, and warps then own slices of the
depth (`fold`). Which shapes it serves is measured (`Tile.held`); small_m_gemm.py streams what is too deep to be held.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior
from sonant.kernels.triton.split_k import arrived_last, counters, sum_partials, workspace
from sonant.kernels.tuning import Tile

_LEAST_BLOCK = 16  # rows of a tile, however few there are


@triton.jit
def _plus_product(total, value, own, FOLD: tl.constexpr, PRECISION: tl.constexpr):
    """[M, K] by [N, K]; folded, warps share the depth out."""
    if FOLD > 1:
        deep: tl.constexpr = own.shape[1] // FOLD
        value = tl.permute(tl.reshape(value, (value.shape[0], FOLD, deep)), (1, 0, 2))
        own = tl.permute(tl.reshape(own, (own.shape[0], FOLD, deep)), (1, 2, 0))
    else:
        own = tl.trans(own)
    return tl.dot(value, own, total, input_precision=PRECISION)


@triton.jit
def _sum_of_all(
    total, other, square, partials, squares, arrivals, strip, split,
    NORM: tl.constexpr, GATED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Leave this program's sums; whoever comes last has those of all, and is told so."""
    planes: tl.constexpr = 2 if GATED else 1
    cells: tl.constexpr = planes * BLOCK_M * BLOCK_N
    row = tl.arange(0, BLOCK_M)
    cell = row[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None]
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


@triton.jit(do_not_specialize=["rows"])
def _held_gemm(
    x, weight, gain, residual, out, partials, squares, arrivals, rows, columns, depth, eps,
    NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, PDL: tl.constexpr, PRECISION: tl.constexpr,
    FOLD: tl.constexpr, TILES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    """Long, since what is asked for before the wait is used after it."""
    launch_dependents(PDL)
    strip, split = tl.program_id(0), tl.program_id(1)
    row, column = tl.arange(0, BLOCK_M), strip * BLOCK_N + tl.arange(0, BLOCK_N)
    first = split * TILES * BLOCK_K + tl.arange(0, BLOCK_K)
    # rows and columns past the end are the last ones again: what comes of them is not stored
    start = weight + tl.minimum(column, columns - 1).to(tl.int64)[:, None] * depth
    up_start = start + columns.to(tl.int64) * depth
    dtype = out.dtype.element_ty
    held, ups, gains = (), (), ()  # a tile each; Triton knows no unpacking into a tuple
    for tile in tl.static_range(TILES):
        k = first + tile * BLOCK_K
        held = held + (tl.load(start + k[None]),)  # noqa: RUF005
        if GATED:
            ups = ups + (tl.load(up_start + k[None]),)  # noqa: RUF005
        if NORM:
            gains = gains + (tl.load(gain + k),)  # noqa: RUF005
    at = row[:, None] * columns + column[None]
    mask = (row < rows)[:, None] & (column < columns)[None]
    source = x + tl.minimum(row, rows - 1)[:, None] * depth
    wait_prior(PDL)
    values = ()
    for tile in tl.static_range(TILES):
        values = values + (tl.load(source + (first + tile * BLOCK_K)[None]),)  # noqa: RUF005
    before = tl.zeros([BLOCK_M, BLOCK_N], dtype)
    if ADD:
        before = tl.load(residual + at, mask=mask, other=0.0)

    total = tl.zeros([FOLD, BLOCK_M, BLOCK_N] if FOLD > 1 else [BLOCK_M, BLOCK_N], tl.float32)
    other, square = total, tl.zeros([BLOCK_M], tl.float32)
    for tile in tl.static_range(TILES):
        value = values[tile]
        if NORM:  # its scale, a factor of the whole row, comes at the end
            wide = value.to(tl.float32)
            square += tl.sum(wide * wide, axis=1)
            value = (wide * gains[tile].to(tl.float32)[None]).to(dtype)
        total = _plus_product(total, value, held[tile], FOLD, PRECISION)
        if GATED:
            other = _plus_product(other, value, ups[tile], FOLD, PRECISION)
    if FOLD > 1:
        total, other = tl.sum(total, axis=0), tl.sum(other, axis=0)

    last = True
    if SPLITS > 1:
        total, other, square, last = _sum_of_all(
            total, other, square, partials, squares, arrivals, strip, split, NORM, GATED, BLOCK_M, BLOCK_N, SPLITS
        )
    if last:
        if NORM:
            factor = tl.rsqrt(square / depth + eps)[:, None]
            total *= factor
            other *= factor
        if GATED:  # rounded where the reference rounds
            gate = total.to(dtype).to(tl.float32)
            silu = (gate / (1 + tl.exp(-gate))).to(dtype).to(tl.float32)
            total = silu * other.to(dtype).to(tl.float32)
        if ADD:
            total = before.to(tl.float32) + total.to(dtype).to(tl.float32)
        tl.store(out + at, total.to(dtype), mask=mask)


def product(
    x: Tensor, weight: Tensor, out: Tensor, tile: Tile, *, gain: Tensor | None, eps: float, gated: bool,
    residual: Tensor | None,
) -> None:  # fmt: skip
    """Fill `out` [rows, columns] with x [rows, depth] times weight [columns (twice if gated), depth], and the rest."""
    rows, depth = x.shape
    columns = out.shape[1]
    block_m = max(_LEAST_BLOCK, triton.next_power_of_2(rows))
    strips = triton.cdiv(columns, tile.n)
    tiles = depth // (tile.k * tile.splits)
    if tiles * tile.k * tile.splits != depth:
        raise ValueError(f"{tile} does not divide a depth of {depth}")
    squares = strips * tile.splits * block_m
    partials = workspace(x, strips, tile.splits, ((2 if gated else 1) * tile.n + 1) * block_m)
    _held_gemm[(strips, tile.splits)](
        x, weight, weight if gain is None else gain, out if residual is None else residual, out,
        partials, partials[max(0, partials.numel() - squares) :], counters(weight, strips, tile.splits),
        rows=rows, columns=columns, depth=depth, eps=eps,
        NORM=gain is not None, GATED=gated, ADD=residual is not None,
        PRECISION="ieee" if x.dtype is torch.float32 else "tf32", FOLD=tile.fold, TILES=tiles,
        BLOCK_M=block_m, BLOCK_N=tile.n, BLOCK_K=tile.k, SPLITS=tile.splits, num_warps=tile.warps, num_stages=1,
        **launch_options(x),
    )  # fmt: skip
