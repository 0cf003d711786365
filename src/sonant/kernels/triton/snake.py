"""SnakeBeta in one pass over [B, T, C], whose rows may lie apart (a slice of a longer buffer)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.triton.early import begin, options, wait


@triton.jit
def snake(x, exp_alpha, exp_beta):
    """x + sin²(x·e^α) / (e^β + 1e-9), all float32."""
    wave = tl.sin(x * exp_alpha)
    return x + wave * wave / (exp_beta + 1e-9)


@triton.jit
def _snake_beta(
    x, alpha, beta, out, count, steps, channels, batch_stride, step_stride, EARLY: tl.constexpr, BLOCK: tl.constexpr
):
    begin(EARLY)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    channel, row = at % channels, at // channels
    source = (row // steps) * batch_stride + (row % steps) * step_stride + channel
    a = tl.exp(tl.load(alpha + channel, mask=inside, other=0.0).to(tl.float32))
    b = tl.exp(tl.load(beta + channel, mask=inside, other=0.0).to(tl.float32))
    wait(EARLY)
    value = tl.load(x + source, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, snake(value, a, b).to(out.dtype.element_ty), mask=inside)


def snake_beta(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    if x.stride(-1) != 1:
        x = x.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _, steps, channels = x.shape
    block = 1024
    _snake_beta[(triton.cdiv(out.numel(), block),)](
        x, alpha, beta, out, out.numel(), steps, channels, x.stride(0), x.stride(1),
        BLOCK=block, num_warps=4, **options(x),
    )  # fmt: skip
    return out
