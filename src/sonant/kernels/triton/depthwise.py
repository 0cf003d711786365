"""A depthwise convolution, channels last: the library's kernel for it is a hundred times slower.

Past and fresh inputs are read in place, and SnakeBeta is fused. A program computes a tile of steps and channels.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.reference import Snake
from sonant.kernels.sizes import cdiv, next_power_of_2
from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior
from sonant.kernels.triton.snake import quick_sine, snake_factors
from sonant.kernels.triton.snake import snake as snake_of

_CELLS = 512  # results of a program


@triton.jit(do_not_specialize=["steps", "tiles_t"])
def _depthwise(
    x, past, weight, bias, alpha, beta, out, steps, channels, batch_stride, step_stride, past_stride, tiles_t,
    TAPS: tl.constexpr, DILATION: tl.constexpr, PAST: tl.constexpr, SNAKE: tl.constexpr, LOG_SCALE: tl.constexpr,
    QUICK: tl.constexpr, PDL: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    launch_dependents(PDL)
    history: tl.constexpr = (TAPS - 1) * DILATION
    batch = (tl.program_id(0) // tiles_t).to(tl.int64)
    step = (tl.program_id(0) % tiles_t) * BLOCK_T + tl.arange(0, BLOCK_T)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    known = channel < channels
    inside = (step < steps)[:, None] & known[None]
    dtype = out.dtype.element_ty
    total = tl.zeros([BLOCK_T, BLOCK_C], tl.float32) + tl.load(bias + channel, mask=known, other=0.0).to(tl.float32)
    fresh_from = x + batch * batch_stride + (step - history) * step_stride
    past_from = past + batch * past_stride + step * channels
    wait_prior(PDL)
    for tap in tl.static_range(TAPS):
        shift = tap * DILATION
        fresh = step + shift >= history
        if PAST:
            start = tl.where(fresh, fresh_from + shift * step_stride, past_from + shift * channels)
            value = tl.load(start[:, None] + channel[None], mask=inside, other=0.0)
        else:
            start = fresh_from + shift * step_stride
            value = tl.load(start[:, None] + channel[None], mask=inside & fresh[:, None], other=0.0)
        own = tl.load(weight + tap * channels + channel, mask=known, other=0.0).to(tl.float32)
        total += value.to(tl.float32) * own[None]
    total = total.to(dtype)
    if SNAKE:
        half_waves, factor = snake_factors(
            tl.load(alpha + channel, mask=known, other=0.0), tl.load(beta + channel, mask=known, other=0.0), LOG_SCALE
        )
        total = snake_of(total.to(tl.float32), half_waves[None], factor[None], QUICK).to(dtype)
    tl.store(out + (batch * steps + step)[:, None] * channels + channel[None], total, mask=inside)


def depthwise(
    x: Tensor, weight: Tensor, bias: Tensor, past: Tensor | None, dilation: int = 1, *, snake: Snake | None = None
) -> Tensor:
    batch, steps, channels = x.shape
    x = x if x.stride(2) == 1 else x.contiguous()
    past = past if past is None or past.stride()[1:] == (channels, 1) else past.contiguous()
    alpha, beta, log_scale = snake or (bias, bias, True)
    out = torch.empty(batch, steps, channels, dtype=x.dtype, device=x.device)
    block_c = min(next_power_of_2(channels), 128)
    tiles_t = cdiv(steps, _CELLS // block_c)
    _depthwise[(batch * tiles_t, cdiv(channels, block_c))](
        x, x if past is None else past, weight[:, 0].T.contiguous(), bias, alpha, beta, out, steps, channels,
        x.stride(0), x.stride(1), 0 if past is None else past.stride(0), tiles_t,
        TAPS=weight.shape[2], DILATION=dilation, PAST=past is not None, SNAKE=snake is not None, LOG_SCALE=log_scale,
        QUICK=snake is not None and quick_sine(x),
        BLOCK_T=_CELLS // block_c, BLOCK_C=block_c, num_warps=4, **launch_options(x),
    )  # fmt: skip
    return out
