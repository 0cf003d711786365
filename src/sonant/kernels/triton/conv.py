"""A causal convolution in one kernel: past and fresh inputs read where they lie, bias, residual and SnakeBeta inside.

An implicit matrix product over [taps · inputs]: row t of the output gathers rows t, t - dilation, … of the input, from
the layer's state where they lie before this piece. With `channels` below the number of columns, a column stands for
one of several samples of one channel: a transposed convolution.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels import reference
from sonant.kernels.reference import Snake
from sonant.kernels.triton.early import begin, options, wait
from sonant.kernels.triton.snake import snake as snake_of
from sonant.kernels.triton.snake import snake_beta

_FEWEST_TILES = 96  # below that most of a GPU would idle, and the library splits the depth


@triton.jit
def _conv(
    x, past, weight, bias, residual, alpha, beta, raw, active,
    rows, steps, inputs, columns, channels, history, dilation, batch_stride, step_stride, past_stride, tiles_n,
    PAST: tl.constexpr, ADD: tl.constexpr, KEEP: tl.constexpr, SNAKE: tl.constexpr, TAPS: tl.constexpr,
    PRECISION: tl.constexpr, EARLY: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    tile = tl.program_id(0)
    m = (tile // tiles_n) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = (tile % tiles_n) * BLOCK_N + tl.arange(0, BLOCK_N)
    present, known = m < rows, column < columns
    batch, step = (m // steps).to(tl.int64), m % steps
    chunks = tl.cdiv(inputs, BLOCK_K)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    wait(EARLY)
    for turn in range(TAPS * chunks):
        tap = turn // chunks
        k = (turn % chunks) * BLOCK_K + tl.arange(0, BLOCK_K)
        source = step + tap * dilation - history
        fresh = source >= 0
        if PAST:
            before = past + batch * past_stride + (source + history) * inputs
            start = tl.where(fresh, x + batch * batch_stride + source * step_stride, before)
            there = present
        else:
            start = x + batch * batch_stride + source * step_stride
            there = present & fresh
        value = tl.load(start[:, None] + k[None], mask=there[:, None] & (k < inputs)[None], other=0.0)
        at = column.to(tl.int64)[None] * (TAPS * inputs) + (tap * inputs + k)[:, None]
        part = tl.load(weight + at, mask=(k < inputs)[:, None] & known[None], other=0.0)
        total = tl.dot(value, part, total, input_precision=PRECISION)
    dtype = active.dtype.element_ty
    channel = column % channels
    total = (total + tl.load(bias + channel, mask=known, other=0.0).to(tl.float32)[None]).to(dtype).to(tl.float32)
    at = m.to(tl.int64)[:, None] * columns + column[None]
    mask = present[:, None] & known[None]
    if ADD:
        total += tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
    if KEEP:
        tl.store(raw + at, total.to(dtype), mask=mask)
    if SNAKE:
        a = tl.exp(tl.load(alpha + channel, mask=known, other=0.0).to(tl.float32))[None]
        b = tl.exp(tl.load(beta + channel, mask=known, other=0.0).to(tl.float32))[None]
        tl.store(active + at, snake_of(total.to(dtype).to(tl.float32), a, b).to(dtype), mask=mask)


def _tile(rows: int, columns: int, inputs: int) -> tuple[int, int, int]:
    narrow = max(16, triton.next_power_of_2(columns))
    block_n = narrow if narrow <= 128 else 128 if columns % 128 == 0 else 64
    block_m = 128 if rows * columns >= 128 * block_n * 132 else 64
    block_k = 64 if inputs % 64 == 0 else max(16, min(32, triton.next_power_of_2(inputs)))
    return block_m, block_n, block_k


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
) -> tuple[Tensor, Tensor]:
    batch, steps, inputs = x.shape
    columns, _, taps = weight.shape
    block_m, block_n, block_k = _tile(batch * steps, columns, inputs)
    tiles_n = triton.cdiv(columns, block_n)
    tiles = triton.cdiv(batch * steps, block_m) * tiles_n
    flat = weight.permute(0, 2, 1)
    if tiles < _FEWEST_TILES or not flat.is_contiguous():
        y, _ = reference.causal_conv(x, weight, bias, past, dilation, residual=residual)
        return y, y if snake is None else snake_beta(y.reshape(batch, -1, len(bias)), *snake).view(y.shape)
    x = x if x.stride(2) == 1 else x.contiguous()
    past = past if past is None or past.stride()[1:] == (inputs, 1) else past.contiguous()
    raw = x.new_empty(batch, steps, columns) if keep or snake is None else x.new_empty(0)
    active = raw if snake is None else x.new_empty(batch, steps, columns)
    _conv[(tiles,)](
        x, x if past is None else past, flat, bias, x if residual is None else residual.contiguous(),
        *(snake or (bias, bias)), raw, active, batch * steps, steps, inputs, columns, len(bias),
        (taps - 1) * dilation, dilation, x.stride(0), x.stride(1), 0 if past is None else past.stride(0), tiles_n,
        PAST=past is not None, ADD=residual is not None, KEEP=raw.numel() > 0, SNAKE=snake is not None, TAPS=taps,
        PRECISION="ieee" if x.dtype.itemsize == 4 else "tf32",
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k,
        num_warps=8 if block_m * block_n >= 128 * 128 else 4, num_stages=3, **options(x),
    )  # fmt: skip
    return raw, active
