"""A causal convolution in one kernel: past and fresh inputs are read in place; bias, residual, SnakeBeta are fused.

An implicit matrix product over [taps · inputs]: row t of the output gathers rows t, t - dilation, … of the input, those
before this piece from the layer's state. With fewer `channels` than columns, a column stands for one of several samples
of one channel: a transposed convolution.

The codec's channel counts are three times a power of two and tiles are powers of two, so a wide tile is one and a half
of them: two products over the same inputs. Where there are few tiles, several programs split the depth of one; the last
to arrive adds up their partial sums, in the programs' order.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels import reference
from sonant.kernels.cuda import conv as in_cuda
from sonant.kernels.reference import Bounds, Snake
from sonant.kernels.sizes import cdiv
from sonant.kernels.triton.conv_one import conv_one, is_for_one, values
from sonant.kernels.triton.conv_tile import tile_for
from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior
from sonant.kernels.triton.snake import quick_sine, snake_beta, snake_factors
from sonant.kernels.triton.snake import snake as snake_of
from sonant.kernels.triton.split_k import arrived_last, counters, sum_partials, workspace
from sonant.kernels.tuning import Tile


@triton.jit
def _finish(
    total, row, batch, step, column, bias, residual, alpha, beta, start, end, raw, active, rows, columns, channels,
    residual_stride, scale, offset, ADD: tl.constexpr, APART: tl.constexpr, KEEP: tl.constexpr, SNAKE: tl.constexpr,
    LOG_SCALE: tl.constexpr, QUICK: tl.constexpr, SAMPLED: tl.constexpr, BOUNDED: tl.constexpr,
):  # fmt: skip
    """The epilogue: bias, residual, zeros outside of the bounds, and SnakeBeta, rounded where the reference rounds."""
    dtype = active.dtype.element_ty
    known = column < columns
    channel = column % channels if SAMPLED else column
    total = (total + tl.load(bias + channel, mask=known, other=0.0).to(tl.float32)[None]).to(dtype)
    at = row.to(tl.int64)[:, None] * columns + column[None]
    mask = (row < rows)[:, None] & known[None]
    if ADD:
        place = (batch * residual_stride + step * columns)[:, None] + column[None] if APART else at
        total = (total.to(tl.float32) + tl.load(residual + place, mask=mask, other=0.0).to(tl.float32)).to(dtype)
    if BOUNDED:
        sample = step[:, None] * (columns // channels) + (column // channels)[None] if SAMPLED else step[:, None]
        first, past_last = tl.load(start + batch) * scale + offset, tl.load(end + batch) * scale + offset
        total = tl.where((sample >= first[:, None]) & (sample < past_last[:, None]), total, 0.0)
    if KEEP:
        tl.store(raw + at, total, mask=mask)
    if SNAKE:
        half_waves, factor = snake_factors(
            tl.load(alpha + channel, mask=known, other=0.0), tl.load(beta + channel, mask=known, other=0.0), LOG_SCALE
        )
        total = snake_of(total.to(tl.float32), half_waves[None], factor[None], QUICK)
        tl.store(active + at, total.to(dtype), mask=mask)


@triton.jit
def _weights(weight, column, at, columns, depth, inside, EVEN: tl.constexpr):
    """Weights [K, N]. Columns past the end repeat the last one; their results are not stored."""
    start = weight + tl.minimum(column, columns - 1).to(tl.int64) * depth
    if EVEN:
        return tl.load(start[None] + at[:, None])
    return tl.load(start[None] + at[:, None], mask=inside[:, None], other=0.0)


@triton.jit
def _place(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
    """The tile's row and column index: GROUP tiles of rows, which share the weights they read, come before the next
    columns."""
    group = tile // (GROUP * tiles_n)
    height = tl.minimum(tiles_m - group * GROUP, GROUP)
    within = tile % (GROUP * tiles_n)
    return group * GROUP + within % height, within // height


@triton.jit
def _reduce(
    total, more, partials, arrivals, tile, split, WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    """Store this program's partial sums; the last program to arrive returns the sums of all, and True."""
    half: tl.constexpr = BLOCK_N // 2
    width: tl.constexpr = BLOCK_N + half if WIDE else BLOCK_N
    cells: tl.constexpr = BLOCK_M * width
    line = tl.arange(0, BLOCK_M)[:, None] * width
    slot = partials + tile.to(tl.int64) * SPLITS * cells
    cell, next_cell = line + tl.arange(0, BLOCK_N)[None], line + BLOCK_N + tl.arange(0, half)[None]
    tl.store(slot + split * cells + cell, total)
    if WIDE:
        tl.store(slot + split * cells + next_cell, more)
    last = arrived_last(arrivals + tile, SPLITS)
    if last:
        total = sum_partials(slot, cell, SPLITS, cells)
        if WIDE:
            more = sum_partials(slot, next_cell, SPLITS, cells)
    return total, more, last


@triton.jit(
    do_not_specialize=["rows", "steps", "channels", "history", "dilation", "scale", "offset", "tiles_m", "tiles_n"]
)
def _conv(
    x, past, weight, bias, residual, alpha, beta, start, end, raw, active, partials, arrivals,
    rows, steps, inputs, columns, channels, history, dilation, batch_stride, step_stride, past_stride,
    residual_stride, scale, offset, tiles_m, tiles_n,
    PAST: tl.constexpr, ADD: tl.constexpr, APART: tl.constexpr, KEEP: tl.constexpr, SNAKE: tl.constexpr,
    LOG_SCALE: tl.constexpr, QUICK: tl.constexpr, TAPS: tl.constexpr, SAMPLED: tl.constexpr, BOUNDED: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr, EVEN: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    launch_dependents(PDL)
    tile, split = tl.program_id(0), tl.program_id(1)
    tile_m, tile_n = _place(tile, tiles_m, tiles_n, GROUP)
    row = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    half: tl.constexpr = BLOCK_N // 2
    width: tl.constexpr = BLOCK_N + half if WIDE else BLOCK_N
    column = tile_n * width + tl.arange(0, BLOCK_N)
    further = tile_n * width + BLOCK_N + tl.arange(0, half)

    there = tl.minimum(row, rows - 1)  # rows past the end repeat the last one; their results are not stored
    batch, step = (there // steps).to(tl.int64), there % steps
    fresh_from = x + batch * batch_stride + (step - history) * step_stride
    past_from = past + batch * past_stride + step * inputs
    lane, chunks = tl.arange(0, BLOCK_K), tl.cdiv(inputs, BLOCK_K)
    total, more = tl.zeros([BLOCK_M, BLOCK_N], tl.float32), tl.zeros([BLOCK_M, half], tl.float32)
    wait_prior(PDL)
    for k_tile in range(split * TAPS * chunks // SPLITS, (split + 1) * TAPS * chunks // SPLITS):
        tap = k_tile % TAPS  # the taps at one depth are consecutive, since they read nearly the same rows
        k = (k_tile // TAPS) * BLOCK_K + lane
        shift, inside = tap * dilation, k < inputs
        value = values(
            fresh_from + shift * step_stride, past_from + shift * inputs, step + shift >= history, k, inside, PAST, EVEN
        )
        at = tap * inputs + k
        own = _weights(weight, column, at, columns, TAPS * inputs, inside, EVEN)
        total = tl.dot(value, own, total, input_precision=PRECISION)
        if WIDE:
            own = _weights(weight, further, at, columns, TAPS * inputs, inside, EVEN)
            more = tl.dot(value, own, more, input_precision=PRECISION)

    last = True
    if SPLITS > 1:
        total, more, last = _reduce(total, more, partials, arrivals, tile, split, WIDE, BLOCK_M, BLOCK_N, SPLITS)
    if last:
        _finish(
            total, row, batch, step, column, bias, residual, alpha, beta, start, end, raw, active, rows, columns,
            channels, residual_stride, scale, offset, ADD, APART, KEEP, SNAKE, LOG_SCALE, QUICK, SAMPLED, BOUNDED,
        )  # fmt: skip
        if WIDE:
            _finish(
                more, row, batch, step, further, bias, residual, alpha, beta, start, end, raw, active, rows, columns,
                channels, residual_stride, scale, offset, ADD, APART, KEEP, SNAKE, LOG_SCALE, QUICK, SAMPLED, BOUNDED,
            )  # fmt: skip


def causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    past: Tensor | None,
    dilation: int = 1,
    *,
    residual: Tensor | None = None,
    snake: Snake | None = None,
    keep: bool = True,
    bounds: Bounds | None = None,
    tile: Tile | None = None,
) -> tuple[Tensor, Tensor]:
    """`tile` is what a tuner tries; None: the best known."""
    batch, steps, inputs = x.shape
    columns, _, taps = weight.shape
    flat = weight.permute(0, 2, 1)
    if tile is None and residual is None and snake is None and bounds is None and is_for_one(flat, dilation):
        y = conv_one(x, flat, bias, past)
        return y, y
    if tile is None and in_cuda.takes(x, weight, bias, past, dilation, residual, snake, bounds):
        return in_cuda.causal_conv(x, weight, bias, past, dilation, snake=snake, keep=keep)
    tile = tile or tile_for(x, columns, taps)
    if tile.library or not flat.is_contiguous():
        y, _ = reference.causal_conv(x, weight, bias, past, dilation, residual=residual, bounds=bounds)
        return y, y if snake is None else snake_beta(y.reshape(batch, -1, len(bias)), *snake).view(y.shape)
    x = x if x.stride(2) == 1 else x.contiguous()
    past = past if past is None or past.stride()[1:] == (inputs, 1) else past.contiguous()
    residual = residual if residual is None or residual.stride()[1:] == (columns, 1) else residual.contiguous()
    apart = residual is not None and not residual.is_contiguous()  # a slice of steps: its rows are not adjacent
    alpha, beta, log_scale = snake or (bias, bias, True)
    start, end, scale, offset = bounds or (bias, bias, 1, 0)
    raw = x.new_empty(batch, steps, columns) if keep or snake is None else x.new_empty(0)
    active = raw if snake is None else x.new_empty(batch, steps, columns)
    tiles_m, tiles_n = cdiv(batch * steps, tile.m), cdiv(columns, tile.width)
    tiles = tiles_m * tiles_n
    _conv[(tiles, tile.splits)](
        x, x if past is None else past, flat, bias, x if residual is None else residual, alpha, beta, start, end, raw,
        active,
        workspace(x, tiles, tile.splits, tile.m * tile.width), counters(weight, tiles, tile.splits),
        batch * steps, steps, inputs, columns, len(bias),
        (taps - 1) * dilation, dilation, x.stride(0), x.stride(1), 0 if past is None else past.stride(0),
        residual.stride(0) if residual is not None and apart else 0, scale, offset, tiles_m, tiles_n,
        PAST=past is not None, ADD=residual is not None, APART=apart, KEEP=raw.numel() > 0, SNAKE=snake is not None,
        LOG_SCALE=log_scale, QUICK=snake is not None and quick_sine(x), TAPS=taps, SAMPLED=columns > len(bias),
        BOUNDED=bounds is not None,
        PRECISION="ieee" if x.dtype.itemsize == 4 else "tf32", EVEN=inputs % tile.k == 0, WIDE=tile.wide,
        BLOCK_M=tile.m, BLOCK_N=tile.n, BLOCK_K=tile.k, GROUP=tile.group, SPLITS=tile.splits,
        num_warps=tile.warps, num_stages=tile.stages, **launch_options(x),
    )  # fmt: skip
    return raw, active
