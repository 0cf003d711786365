"""A convolution of each channel by itself, channels last: the library's kernel for it is a hundred times slower."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior


@triton.jit
def _depthwise(
    x, weight, bias, out, count, steps, channels, batch_stride, step_stride,
    TAPS: tl.constexpr, DILATION: tl.constexpr, PDL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    launch_dependents(PDL)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    channel, row = at % channels, at // channels
    source = (row // steps) * batch_stride + (row % steps) * step_stride + channel
    total = tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)
    wait_prior(PDL)
    for tap in tl.static_range(TAPS):
        value = tl.load(x + source + tap * DILATION * step_stride, mask=inside, other=0.0).to(tl.float32)
        total += value * tl.load(weight + tap * channels + channel, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


def depthwise(x: Tensor, weight: Tensor, bias: Tensor, dilation: int = 1) -> Tensor:
    if x.stride(-1) != 1:
        x = x.contiguous()
    batch, length, channels = x.shape
    taps = weight.shape[-1]
    out = torch.empty(batch, length - (taps - 1) * dilation, channels, dtype=x.dtype, device=x.device)
    block = 512
    _depthwise[(triton.cdiv(out.numel(), block),)](
        x, weight[:, 0].T.contiguous(), bias, out, out.numel(), out.shape[1], channels, x.stride(0), x.stride(1),
        TAPS=taps, DILATION=dilation, BLOCK=block, num_warps=4, **launch_options(x),
    )  # fmt: skip
    return out
