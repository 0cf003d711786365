"""Quantises rows of values to eight bits, each with its scale; a norm before that is part of the same pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.sizes import next_power_of_2
from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior

_LARGEST = tl.constexpr(448.0)


@triton.jit
def _quantize_rows(x, gain, values, scales, dim, eps, NORM: tl.constexpr, PDL: tl.constexpr, BLOCK: tl.constexpr):
    launch_dependents(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < dim
    at = row * dim + column
    weight = tl.zeros([BLOCK], tl.float32)
    if NORM:
        weight = tl.load(gain + column, mask=inside, other=0.0).to(tl.float32)
    wait_prior(PDL)
    value = tl.load(x + at, mask=inside, other=0.0)
    wide = value.to(tl.float32)
    if NORM:
        factor = tl.rsqrt(tl.sum(wide * wide, axis=0) / dim + eps)
        # each result is rounded where the reference rounds it; the arithmetic between is float32
        wide = (weight * (wide * factor).to(value.dtype).to(tl.float32)).to(value.dtype).to(tl.float32)
    most = tl.max(tl.abs(wide), axis=0)
    scale = tl.where(most > 0, most / _LARGEST, 1.0)
    tl.store(scales + row, scale)
    # one division per row: a warp's division takes eight cycles, its multiplication one
    wide = tl.minimum(tl.maximum(wide * (1.0 / scale), -_LARGEST), _LARGEST)
    tl.store(values + at, wide.to(values.dtype.element_ty), mask=inside)


def quantize_rows(x: Tensor, norm: tuple[Tensor, float] | None = None) -> tuple[Tensor, Tensor]:
    """x [rows, depth], after an RMSNorm if `norm` has its gain and epsilon → e4m3 values and scales [rows, 1]."""
    x = x.contiguous()
    rows, dim = x.shape
    values = torch.empty_like(x, dtype=torch.float8_e4m3fn)
    scales = torch.empty(rows, 1, dtype=torch.float32, device=x.device)
    block = next_power_of_2(dim)
    gain, eps = norm or (x, 0.0)
    _quantize_rows[(rows,)](
        x, gain, values, scales, dim, eps, NORM=norm is not None, BLOCK=block,
        num_warps=max(1, min(8, block // 512)), **launch_options(x),
    )  # fmt: skip
    return values, scales
