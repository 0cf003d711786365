"""SnakeBeta with a gradient in one pass: plain autograd keeps five copies of the codec's largest tensors.

On the CPU the served reference runs, with torch's own gradient.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.triton.snake import snake_beta

_PROGRAMS = 528  # four for each of an H200's multiprocessors
_TILE = 4096


@triton.jit
def _backward(
    x, slope, alpha, beta, out, sums, rows, channels, ROWS: tl.constexpr, CHANNELS: tl.constexpr, LOOPS: tl.constexpr
):
    """Adds each program's share of the slopes of alpha and beta to its own row of `sums`."""
    program = tl.program_id(0)
    channel = tl.arange(0, CHANNELS)
    known = channel < channels
    a = tl.exp(tl.load(alpha + channel, mask=known, other=0.0))
    b = tl.exp(tl.load(beta + channel, mask=known, other=0.0))
    share = 1.0 / (b + 1e-9)
    for_alpha = tl.zeros((CHANNELS,), tl.float32)
    for_beta = tl.zeros((CHANNELS,), tl.float32)
    for loop in range(LOOPS):
        row = (program * LOOPS + loop) * ROWS + tl.arange(0, ROWS)
        at = row[:, None].to(tl.int64) * channels + channel[None]
        inside = (row < rows)[:, None] & known[None]
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        given = tl.load(slope + at, mask=inside, other=0.0).to(tl.float32)
        sine, cosine = tl.sin(value * a[None]), tl.cos(value * a[None])
        rise = 2 * sine * cosine * (a * share)[None]
        tl.store(out + at, (given * (1 + rise)).to(out.dtype.element_ty), mask=inside)
        for_alpha += tl.sum(given * rise * value, axis=0)
        for_beta -= tl.sum(given * sine * sine, axis=0) * b * share * share
    tl.store(sums + program * 2 * channels + channel, for_alpha, mask=known)
    tl.store(sums + program * 2 * channels + channels + channel, for_beta, mask=known)


class _Snake(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x, alpha, beta)
        return snake_beta(x, alpha, beta)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        x, alpha, beta = ctx.saved_tensors
        channels = x.shape[-1]
        width = triton.next_power_of_2(channels)
        height = max(1, _TILE // width)
        rows = x.numel() // channels
        loops = triton.cdiv(rows, height * _PROGRAMS)
        programs = triton.cdiv(rows, height * loops)
        out = torch.empty_like(x)
        sums = torch.empty(programs, 2, channels, device=x.device)
        _backward[(programs,)](
            x, slope.contiguous(), alpha, beta, out, sums, rows, channels,
            ROWS=height, CHANNELS=width, LOOPS=loops, num_warps=4,
        )  # fmt: skip
        for_alpha, for_beta = sums.sum(0)
        return out, for_alpha, for_beta


def snake(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """SnakeBeta on a GPU, with gradients for x, alpha and beta."""
    return _Snake.apply(x, alpha, beta)
