"""Norm and matrix products of two-sided layers: every position uses the weights of its own side only.

A tile has rows of one side: tiles of text come first, then audio, then padding, the last of each partly empty. Only the
device knows how many there are, so programs are launched for the worst case, and those past the last tile return at
once. Rows are gathered and scattered in place, by the split's order. All tiles of rows come before the next columns
begin: a strip of weights is then read from memory once, and the rows stay in L2 meanwhile.

Weights are the left operand of the product, as in small_m_gemm.py: tensor cores take 64 lines of that operand at a
time, and rows may be few. The norm is a kernel of its own: inside the product each program would recompute it, between
shared memory and the tensor cores.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels import reference
from sonant.kernels.reference import QuantizedWeight, Sides, Split, Weight, parts_of
from sonant.kernels.sizes import cdiv, next_power_of_2
from sonant.kernels.triton.dual_tile import row_tiles, tile_for
from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior
from sonant.kernels.triton.small_m_gemm import column_scales
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
    """A tile's side (2: padding), and in the split's order its first row and the end of its side."""
    side = (tile >= text_tiles).to(tl.int32) + (tile >= text_tiles + audio_tiles).to(tl.int32)
    begin = tl.where(side == 0, 0, tl.where(side == 1, text, text + audio))
    end = tl.where(side == 0, text, tl.where(side == 1, text + audio, rows))
    before = tl.where(side == 0, 0, tl.where(side == 1, text_tiles, text_tiles + audio_tiles))
    return side, begin + (tile - before) * BLOCK_M, end


@triton.jit
def _strip(start, k, depth, EVEN: tl.constexpr):
    """Values [N, K] at the offsets k from each pointer in `start` [N], zero past the depth."""
    if EVEN:
        return tl.load(start[:, None] + k[None])
    return tl.load(start[:, None] + k[None], mask=(k < depth)[None], other=0.0)


@triton.jit
def _reduce(
    total, other, partials, arrivals, group, split,
    GATED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Store this program's partial sums; the last program to arrive returns the sums of all, and True."""
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
    x, order, counts, text_weight, audio_weight, text_scale, audio_scale, residual, out, partials, arrivals,
    rows, columns, depth,
    GATED: tl.constexpr, SCALED: tl.constexpr, PRECISION: tl.constexpr, EVEN: tl.constexpr, PDL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """GATED: SwiGLU of the product's halves, zero for padding. Else residual plus product, for padding the residual.

    The function is long, since a tile's place, its product and its epilogue share nearly all their values.
    """
    launch_dependents(PDL)
    group, split = tl.program_id(0), tl.program_id(1)
    wait_prior(PDL)
    text, audio = tl.load(counts), tl.load(counts + 1)
    text_tiles, audio_tiles = tl.cdiv(text, BLOCK_M), tl.cdiv(audio, BLOCK_M)
    tiles = text_tiles + audio_tiles + tl.cdiv(rows - text - audio, BLOCK_M)
    if group >= tiles * tl.cdiv(columns, BLOCK_N):
        return
    column = (group // tiles) * BLOCK_N + tl.arange(0, BLOCK_N)
    side, first, end = _side_of(group % tiles, text_tiles, audio_tiles, text, audio, rows, BLOCK_M)
    place = first + tl.arange(0, BLOCK_M)
    # rows and columns past the end repeat the last ones; their results are not stored
    row = tl.load(order + tl.minimum(place, end - 1)).to(tl.int64)
    cell = row[None] * columns + column[:, None]
    mask = (place < end)[None] & (column < columns)[:, None]
    dtype = out.dtype.element_ty
    if side == 2:
        fill = tl.zeros([BLOCK_N, BLOCK_M], dtype)
        if not GATED:
            fill = tl.load(residual + cell, mask=mask, other=0.0)
        tl.store(out + cell, fill, mask=mask)
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
        total = tl.dot(_strip(start, at, depth, EVEN).to(dtype), value, total, input_precision=PRECISION)
        if GATED:
            other = tl.dot(_strip(up_start, at, depth, EVEN).to(dtype), value, other, input_precision=PRECISION)

    last = True
    if SPLITS > 1:
        total, other, last = _reduce(total, other, partials, arrivals, group, split, GATED, BLOCK_M, BLOCK_N, SPLITS)
    if last:
        if SCALED:
            scale = tl.where(side == 0, text_scale, audio_scale)
            own_scale, up_scale = column_scales(scale, column, columns, GATED, SCALED)
            total *= own_scale[:, None]
            other *= up_scale[:, None]
        total = total.to(dtype).to(tl.float32)  # each result is rounded where the reference rounds it
        if GATED:
            silu = (total / (1 + tl.exp(-total))).to(dtype).to(tl.float32)
            total = silu * other.to(dtype).to(tl.float32)
        else:
            total += tl.load(residual + cell, mask=mask, other=0.0).to(tl.float32)
        tl.store(out + cell, total.to(dtype), mask=mask)


def _product(x: Tensor, split: Split, weights: Sides[Weight], residual: Tensor | None, tile: Tile) -> Tensor:
    """The product of x [B, T, depth], plus the residual; gated if that is None."""
    gated, depth = residual is None, x.shape[-1]
    columns = weights.text.shape[0] // (2 if gated else 1)
    out = x.new_empty(*x.shape[:-1], columns)
    rows = out.numel() // columns
    groups = row_tiles(rows, tile.m) * cdiv(columns, tile.n)
    cells = (2 if gated else 1) * tile.m * tile.n
    (text, text_scale), (audio, audio_scale) = (parts_of(weight) for weight in weights)
    _dual_gemm[(groups, tile.splits)](
        x.contiguous(), split.order, split.counts, text, audio, x if text_scale is None else text_scale,
        x if audio_scale is None else audio_scale, out if residual is None else residual.contiguous(), out,
        workspace(x, groups, tile.splits, cells), counters(text, groups, tile.splits), rows, columns, depth,
        GATED=gated, SCALED=text_scale is not None, PRECISION="ieee" if x.dtype.itemsize == 4 else "tf32",
        EVEN=depth % tile.k == 0, BLOCK_M=tile.m, BLOCK_N=tile.n, BLOCK_K=tile.k, SPLITS=tile.splits,
        num_warps=tile.warps, num_stages=tile.stages, **launch_options(x),
    )  # fmt: skip
    return out


def _suits(weights: Sides[Weight], like: Tensor) -> bool:
    kinds = {None if isinstance(weight, QuantizedWeight) else weight.dtype for weight in weights}
    return kinds in ({None}, {like.dtype}) and all(weight.is_contiguous() for weight in weights)


def dual_norm(x: Tensor, split: Split, gains: Sides[Tensor], eps: float) -> Tensor:
    x = x.contiguous()
    dim = x.shape[-1]
    out = torch.empty_like(x)
    block = next_power_of_2(dim)
    _dual_rms_norm[(x.numel() // dim,)](
        x, split.kinds, *gains, out, dim, eps, BLOCK=block, num_warps=max(1, min(8, block // 256)), **launch_options(x)
    )
    return out


def dual_norm_gated(
    x: Tensor, split: Split, gains: Sides[Tensor], eps: float, weights: Sides[Weight], *, tile: Tile | None = None
) -> Tensor:
    """`tile` is what a tuner tries; None: the best known."""
    tile = tile or tile_for(x, weights.text, gated=True)
    if tile.library or not _suits(weights, x):
        return reference.dual_norm_gated(x, split, gains, eps, weights)
    return _product(dual_norm(x, split, gains, eps), split, weights, None, tile)


def dual_linear_add(
    inner: Tensor, split: Split, weights: Sides[Weight], residual: Tensor, *, tile: Tile | None = None
) -> Tensor:
    tile = tile or tile_for(inner, weights.text, gated=False)
    if tile.library or not _suits(weights, inner):
        return reference.dual_linear_add(inner, split, weights, residual)
    return _product(inner, split, weights, residual, tile)
