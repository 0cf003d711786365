"""RMSNorm, alone or after a residual sum: one pass over the row instead of eight."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.sizes import next_power_of_2
from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior


@triton.jit
def _rms_norm(x, weight, out, dim, eps, PDL: tl.constexpr, BLOCK: tl.constexpr):
    launch_dependents(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < dim
    at = row * dim + column
    dtype = out.dtype.element_ty
    gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    wait_prior(PDL)
    wide = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / dim + eps)
    # each result is rounded where the reference rounds it; the arithmetic between is float32
    tl.store(out + at, (gain * (wide * scale).to(dtype).to(tl.float32)).to(dtype), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.contiguous()
    dim = x.shape[-1]
    out = torch.empty_like(x)
    block = next_power_of_2(dim)
    warps = max(1, min(8, block // 256))
    _rms_norm[(x.numel() // dim,)](x, weight, out, dim, eps, BLOCK=block, num_warps=warps, **launch_options(x))
    return out


@triton.jit
def row_factor(x, row, dim, eps, BLOCK: tl.constexpr):
    """The factor by which an RMSNorm without its gain multiplies a row."""
    column = tl.arange(0, BLOCK)
    wide = tl.load(x + row * dim + column, mask=column < dim, other=0.0).to(tl.float32)
    return tl.rsqrt(tl.sum(wide * wide, axis=0) / dim + eps)


@triton.jit
def _add_norm(x, branch, weight, total, out, dim, eps, PDL: tl.constexpr, BLOCK: tl.constexpr):
    launch_dependents(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < dim
    at = row * dim + column
    dtype = out.dtype.element_ty
    gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    wait_prior(PDL)
    before = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    summed = (before + tl.load(branch + at, mask=inside, other=0.0).to(tl.float32)).to(dtype)
    wide = summed.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / dim + eps)
    tl.store(total + at, summed, mask=inside)
    tl.store(out + at, (gain * (wide * scale).to(dtype).to(tl.float32)).to(dtype), mask=inside)


def add_norm(x: Tensor, branch: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    x, branch = x.contiguous(), branch.contiguous()
    dim = x.shape[-1]
    total, out = torch.empty_like(x), torch.empty_like(x)
    block = next_power_of_2(dim)
    warps = max(1, min(8, block // 256))
    _add_norm[(x.numel() // dim,)](
        x, branch, gain, total, out, dim, eps, BLOCK=block, num_warps=warps, **launch_options(x)
    )
    return total, out
