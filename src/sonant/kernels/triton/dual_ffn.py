"""Norm and products of two-sided layers: every position with the weights of its own side, and those alone.

A tile of rows is of one side: tiles of text come first, then those of audio, each side's last one partly empty. How
many there are only the device knows, so there are programs for the worst case, and those past the last tile end at
once. Rows are gathered and scattered where they lie, by the split's order. All tiles of rows follow each other before
the next columns begin: a strip of weights then comes from memory once, and the rows stay in L2 meanwhile.

Weights are the left side of the product, as in small_m_gemm.py: tensor cores want 64 of that side, and rows may be few.
The norm is a pass of its own: inside the product each program would work it out anew, between shared memory and the
tensor cores.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels import reference
from sonant.kernels.reference import Sides, Split
from sonant.kernels.triton.dual_tile import row_tiles, tile_for
from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior
from sonant.kernels.triton.split_k import arrived_last, counters, sum_partials, workspace
from sonant.kernels.tuning import Tile


@triton.jit
def _dual_rms_norm(x, kinds, text, audio, out, dim, eps, PDL: tl.constexpr, BLOCK: tl.constexpr):
    launch_dependents(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < dim
    at = row * dim + column
    dtype = out.dtype.element_ty
    of_text, of_audio = tl.load(text + column, mask=inside, other=0.0), tl.load(audio + column, mask=inside, other=0.0)
    wait_prior(PDL)
    kind = tl.load(kinds + row)
    gain = tl.where(kind == 0, of_text, of_audio).to(tl.float32)
    wide = tl.load(x + at, mask=inside & (kind < 2), other=0.0).to(tl.float32)  # padding may be NaN, and becomes zero
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / dim + eps)
    # each result is rounded where the reference rounds it; the arithmetic between is float32
    tl.store(out + at, (gain * (wide * scale).to(dtype).to(tl.float32)).to(dtype), mask=inside)


@triton.jit
def _side_of(tile, text_tiles, audio_tiles, text, audio, rows, BLOCK_M: tl.constexpr):
    """Of a tile of rows: its side (2: padding), and its range in the split's order."""
    side = (tile >= text_tiles).to(tl.int32) + (tile >= text_tiles + audio_tiles).to(tl.int32)
    begin = tl.where(side == 0, 0, tl.where(side == 1, text, text + audio))
    end = tl.where(side == 0, text, tl.where(side == 1, text + audio, rows))
    before = tl.where(side == 0, 0, tl.where(side == 1, text_tiles, text_tiles + audio_tiles))
    return side, begin + (tile - before) * BLOCK_M, end


@triton.jit
def _strip(start, k, depth, EVEN: tl.constexpr):
    """At each pointer in `start` [N], the columns k: [N, K], zero past the depth."""
    if EVEN:
        return tl.load(start[:, None] + k[None])
    return tl.load(start[:, None] + k[None], mask=(k < depth)[None], other=0.0)


@triton.jit
def _reduce(
    total, other, partials, arrivals, group, split,
    GATED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Leave this program's sums; whoever comes last has those of all, and is told so."""
    cells: tl.constexpr = (2 if GATED else 1) * BLOCK_M * BLOCK_N
    cell = tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None]
    slot = partials + group.to(tl.int64) * SPLITS * cells
    tl.store(slot + split * cells + cell, total)
    if GATED:
        tl.store(slot + split * cells + BLOCK_M * BLOCK_N + cell, other)
    last = arrived_last(arrivals + group, SPLITS)
    if last:
        total = sum_partials(slot, cell, SPLITS, cells)
        if GATED:
            other = sum_partials(slot + BLOCK_M * BLOCK_N, cell, SPLITS, cells)
    return total, other, last


@triton.jit(do_not_specialize=["rows"])
def _dual_gemm(
    x, order, counts, text_weight, audio_weight, out, partials, arrivals, rows, columns, depth,
    GATED: tl.constexpr, PRECISION: tl.constexpr, EVEN: tl.constexpr, PDL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """GATED: `out` is filled with SwiGLU of both halves, zero for padding. Else the product is added to `out`.

    Long, because Triton keeps sums in registers only within one function's loop.
    """
    launch_dependents(PDL)
    group, split = tl.program_id(0), tl.program_id(1)
    wait_prior(PDL)
    text, audio = tl.load(counts), tl.load(counts + 1)
    text_tiles, audio_tiles = tl.cdiv(text, BLOCK_M), tl.cdiv(audio, BLOCK_M)
    tiles = text_tiles + audio_tiles
    if GATED:
        tiles += tl.cdiv(rows - text - audio, BLOCK_M)
    if group >= tiles * tl.cdiv(columns, BLOCK_N):
        return
    column = (group // tiles) * BLOCK_N + tl.arange(0, BLOCK_N)
    side, first, end = _side_of(group % tiles, text_tiles, audio_tiles, text, audio, rows, BLOCK_M)
    place = first + tl.arange(0, BLOCK_M)
    # rows and columns past the end are the last ones again: what comes of them is not stored
    row = tl.load(order + tl.minimum(place, end - 1)).to(tl.int64)
    target = out + row[None] * columns + column[:, None]
    mask = (place < end)[None] & (column < columns)[:, None]
    dtype = out.dtype.element_ty
    if side == 2:
        tl.store(target, tl.zeros([BLOCK_N, BLOCK_M], dtype), mask=mask & (split == 0))
        return

    weight = tl.where(side == 0, text_weight, audio_weight)
    start = weight + tl.minimum(column, columns - 1).to(tl.int64) * depth
    up_start = start + columns.to(tl.int64) * depth
    row_start = x + row * depth
    k = tl.arange(0, BLOCK_K)
    chunks = tl.cdiv(depth, BLOCK_K)
    total = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    other = total
    for chunk in range(split * chunks // SPLITS, (split + 1) * chunks // SPLITS):
        at = chunk * BLOCK_K + k
        value = _strip(row_start, at, depth, EVEN).trans()
        total = tl.dot(_strip(start, at, depth, EVEN), value, total, input_precision=PRECISION)
        if GATED:
            other = tl.dot(_strip(up_start, at, depth, EVEN), value, other, input_precision=PRECISION)

    last = True
    if SPLITS > 1:
        total, other, last = _reduce(
            total, other, partials, arrivals, group, split, GATED, BLOCK_M, BLOCK_N, SPLITS
        )
    if last:
        total = total.to(dtype).to(tl.float32)  # each result is rounded where the reference rounds it
        if GATED:
            silu = (total / (1 + tl.exp(-total))).to(dtype).to(tl.float32)
            total = silu * other.to(dtype).to(tl.float32)
        else:
            total += tl.load(target, mask=mask, other=0.0).to(tl.float32)
        tl.store(target, total.to(dtype), mask=mask)


def _product(x: Tensor, split: Split, weights: Sides, out: Tensor, *, gated: bool, tile: Tile) -> None:
    """x [rows, depth] and out [rows, columns], both contiguous."""
    (rows, depth), columns = x.shape, out.shape[1]
    groups = row_tiles(rows, tile.m, 3 if gated else 2) * triton.cdiv(columns, tile.n)
    cells = (2 if gated else 1) * tile.m * tile.n
    _dual_gemm[(groups, tile.splits)](
        x, split.order, split.counts, weights.text, weights.audio, out,
        workspace(x, groups, tile.splits, cells), counters(weights.text, groups, tile.splits), rows, columns, depth,
        GATED=gated, PRECISION="ieee" if x.dtype.itemsize == 4 else "tf32", EVEN=depth % tile.k == 0,
        BLOCK_M=tile.m, BLOCK_N=tile.n, BLOCK_K=tile.k, SPLITS=tile.splits,
        num_warps=tile.warps, num_stages=tile.stages, **launch_options(x),
    )  # fmt: skip


def _suits(weights: Sides, like: Tensor) -> bool:
    return all(weight.is_contiguous() and weight.dtype == like.dtype for weight in weights)


def dual_norm(x: Tensor, split: Split, gains: Sides, eps: float) -> Tensor:
    x = x.contiguous()
    dim = x.shape[-1]
    out = torch.empty_like(x)
    block = triton.next_power_of_2(dim)
    _dual_rms_norm[(x.numel() // dim,)](
        x, split.kinds, *gains, out, dim, eps, BLOCK=block, num_warps=max(1, min(8, block // 256)), **launch_options(x)
    )
    return out


def dual_norm_gated(
    x: Tensor, split: Split, gains: Sides, eps: float, weights: Sides, *, tile: Tile | None = None
) -> Tensor:
    """`tile` is what a tuner tries; None: the best known."""
    columns, depth = weights.text.shape[0] // 2, x.shape[-1]
    x = x.contiguous()
    tile = tile or tile_for(x.view(-1, depth), columns, gated=True)
    if tile.library or not _suits(weights, x):
        return reference.dual_norm_gated(x, split, gains, eps, weights)
    normed = dual_norm(x, split, gains, eps)
    out = x.new_empty(*x.shape[:-1], columns)
    _product(normed.view(-1, depth), split, weights, out.view(-1, columns), gated=True, tile=tile)
    return out


def dual_linear_add(
    inner: Tensor, split: Split, weights: Sides, residual: Tensor, *, tile: Tile | None = None
) -> Tensor:
    """Into the residual itself, which so stays as it is where there is padding."""
    columns, depth = weights.text.shape
    inner = inner.contiguous().view(-1, depth)
    tile = tile or tile_for(inner, columns, gated=False)
    if tile.library or not _suits(weights, inner):
        return reference.dual_linear_add(inner.view(*residual.shape[:-1], depth), split, weights, residual)
    out = residual.contiguous()
    _product(inner, split, weights, out.view(-1, columns), gated=False, tile=tile)
    return out
