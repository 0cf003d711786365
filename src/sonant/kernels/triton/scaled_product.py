"""Matrix products of quantised weights with more than a few rows: both sides in eight bits, ours or the library's.

The rows of the input are quantised too, in the same pass as the norm before them if there is one; or attention has
already left them in eight bits, since all values were known to fit (`mixed_dtype`). Our product fuses what comes after
it; which of the two is faster is measured. Where neither fits (a GPU older than Hopper, an unusual size, values that do
not have 16 bits), weights are widened first, so that only they are rounded.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sonant.kernels import reference
from sonant.kernels.gpu import gpu_of
from sonant.kernels.reference import Heads, QuantizedWeight
from sonant.kernels.reference.quantized import E4M3
from sonant.kernels.triton.norm import rms_norm
from sonant.kernels.triton.quantize import quantize_rows
from sonant.kernels.triton.small_m_tile import WIDENED_ROWS
from sonant.kernels.triton.swiglu import swiglu
from sonant.kernels.triton.tiled_gemm import tiled_gemm
from sonant.kernels.triton.tiled_tile import fits, tile_for
from sonant.kernels.tuning import Tile

_HOPPER = (9, 0)
_UNIT = 16  # depth and columns must be multiples of it for the library


@dataclass(frozen=True)
class Around:
    """What surrounds a product: an RMSNorm's gain and epsilon before it, and a sum or SwiGLU after it."""

    norm: tuple[Tensor, float] | None = None
    bias: Tensor | None = None
    residual: Tensor | None = None  # may be overwritten
    gated: bool = False


def in_library(x: Tensor, weight: QuantizedWeight) -> bool:
    """Whether the library has such a product: with a scale for each row and column, on Hopper."""
    whole = not any(size % _UNIT for size in weight.shape)
    return on_hopper(x.device) and x.dtype in (torch.bfloat16, E4M3) and whole


def on_hopper(device: torch.device) -> bool:
    gpu = gpu_of(device)
    return gpu is not None and gpu.capability >= _HOPPER


def mixed_dtype(qkv: Tensor, heads: Heads) -> torch.dtype:
    """The dtype of attention's output for rows [B, T, …]: eight bits if all values fit, and `linear_add` takes them."""
    rows = qkv.shape[0] * qkv.shape[1]
    few = rows <= WIDENED_ROWS or qkv.dtype.itemsize != 2
    return E4M3 if heads.bounded and not few and on_hopper(qkv.device) else qkv.dtype


def _ours(x: Tensor, around: Around, tile: Tile) -> bool:
    """Whether our own product takes this; its tiles are for Hopper's shared memory."""
    suits = x.dtype.itemsize <= 2 and around.bias is None and fits(tile, x.shape[-1])
    return suits and not tile.library and (gpu_of(x.device) is None or on_hopper(x.device))


def scaled_product(x: Tensor, weight: QuantizedWeight, around: Around, tile: Tile | None = None) -> Tensor:
    """x [..., depth] times weight [columns (twice if gated), depth], with what is `around`. A tuner tries a `tile`."""
    depth = x.shape[-1]
    columns = weight.shape[0] // (2 if around.gated else 1)
    flat = x.reshape(-1, depth)
    dtype = x.dtype if around.residual is None else around.residual.dtype
    tile = tile or tile_for(len(flat), depth, columns, around.gated, x.device)
    if _ours(x, around, tile):
        residual = None if around.residual is None else around.residual.contiguous().view(-1, columns)
        out = x.new_empty(len(flat), columns, dtype=dtype)
        values, scales = _in_eight_bits(flat, around)
        tiled_gemm(values, weight, out, tile, row_scale=scales, residual=residual, gated=around.gated)
    elif in_library(x, weight):
        values, scales = _in_eight_bits(flat, around)
        scales = torch.ones(len(flat), 1, device=x.device) if scales is None else scales
        product = torch._scaled_mm(
            values, weight.values.T, scales, weight.scale[None], around.bias, out_dtype=dtype, use_fast_accum=True
        )
        out = _after(product, around)
    else:
        normed = flat.to(dtype) if around.norm is None else rms_norm(flat, *around.norm)
        out = _after(reference.linear(normed, weight, around.bias), around)
    return out.view(*x.shape[:-1], columns)


def _in_eight_bits(x: Tensor, around: Around) -> tuple[Tensor, Tensor | None]:
    """x after its norm, if any, and the scale of each row; None: x has eight bits already, and no scale."""
    return (x, None) if x.dtype == E4M3 else quantize_rows(x, around.norm)


def _after(product: Tensor, around: Around) -> Tensor:
    if around.gated:
        return swiglu(product)
    return product if around.residual is None else around.residual.view(product.shape).add_(product)
