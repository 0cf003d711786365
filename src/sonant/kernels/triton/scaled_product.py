"""Matrix products of quantised weights with many rows: the library's, with both sides in eight bits.

The rows of the input are quantised too, in the same pass as the norm before them if there is one. Where the library has
no such product (a GPU older than Hopper, values that are not bfloat16, sizes that are no multiples of 16), weights are
widened first, and only they were rounded.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sonant.kernels import reference
from sonant.kernels.gpu import gpu_of
from sonant.kernels.reference import QuantizedWeight
from sonant.kernels.triton.norm import rms_norm
from sonant.kernels.triton.quantize import quantize_rows

_HOPPER = (9, 0)
_UNIT = 16  # of which depth and columns must be multiples


def in_library(x: Tensor, weight: QuantizedWeight) -> bool:
    gpu = gpu_of(x.device)
    return (
        gpu is not None
        and gpu.capability >= _HOPPER
        and x.dtype == torch.bfloat16
        and not any(size % _UNIT for size in weight.shape)
    )


def scaled_product(
    x: Tensor, weight: QuantizedWeight, bias: Tensor | None = None, *, norm: tuple[Tensor, float] | None = None
) -> Tensor:
    """x [..., depth], or its RMSNorm with that gain and epsilon, times weight [columns, depth], plus bias."""
    if not in_library(x, weight):
        return reference.linear(x if norm is None else rms_norm(x, *norm), weight, bias)
    values, scales = quantize_rows(x.reshape(-1, x.shape[-1]), norm)
    out = torch._scaled_mm(
        values, weight.values.T, scales, weight.scale[None], bias, out_dtype=x.dtype, use_fast_accum=True
    )
    return out.view(*x.shape[:-1], -1)
