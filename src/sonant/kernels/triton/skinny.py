"""Matrix products with few rows: as fast as the weights can be read, with the norm before and the sum after inside.

A program takes some columns over the whole depth. It has all its weights on the way before it waits for the kernel
that makes its input, so weights stream across kernel borders. The norm is worked out by each program anew: the row is
in its registers anyway. Above `ROWS` rows the library's tensor-core products win, and the reference runs with them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels import reference
from sonant.kernels.triton import norm
from sonant.kernels.triton.early import begin, options, wait
from sonant.kernels.triton.swiglu import swiglu

ROWS = 8  # from the ninth row on the same weights, still read once, cost more arithmetic than a tensor core
_DEEPEST = 8192
_VECTORS = 32  # elements of the weights in each thread's hands


@triton.jit
def _skinny(
    x, weight, gain, residual, out, rows, columns, depth, eps,
    NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, EARLY: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    known = column < columns
    k = tl.arange(0, BLOCK_K)
    inside = k < depth
    dtype = out.dtype.element_ty
    at = column.to(tl.int64)[:, None] * depth + k[None]
    mask = known[:, None] & inside[None]
    own = tl.load(weight + at, mask=mask, other=0.0)
    if GATED:
        up = tl.load(weight + columns.to(tl.int64) * depth + at, mask=mask, other=0.0)
    if NORM:
        scale_of = tl.load(gain + k, mask=inside, other=0.0).to(tl.float32)
    wait(EARLY)
    for row in range(rows):
        value = tl.load(x + row * depth + k, mask=inside, other=0.0).to(tl.float32)
        if NORM:
            # each result is rounded where the reference rounds it; the arithmetic between is float32
            scale = tl.rsqrt(tl.sum(value * value, axis=0) / depth + eps)
            value = (scale_of * (value * scale).to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
        total = tl.sum(own.to(tl.float32) * value[None], axis=1).to(dtype)
        if GATED:
            gate = total.to(tl.float32)
            silu = (gate / (1 + tl.exp(-gate))).to(dtype).to(tl.float32)
            total = (silu * tl.sum(up.to(tl.float32) * value[None], axis=1).to(dtype).to(tl.float32)).to(dtype)
        if ADD:
            before = tl.load(residual + row * columns + column, mask=known, other=0.0).to(tl.float32)
            total = (before + total.to(tl.float32)).to(dtype)
        tl.store(out + row * columns + column, total, mask=known)


def fits(x: Tensor, weight: Tensor) -> bool:
    """Whether the product is skinny and both sides are laid out plainly."""
    depth = weight.shape[1]
    return x.numel() <= ROWS * depth and depth <= _DEEPEST and weight.is_contiguous() and x.dtype == weight.dtype


def _launch(
    x: Tensor, weight: Tensor, *, gain: Tensor | None = None, eps: float = 0.0, gated: bool = False,
    residual: Tensor | None = None,
) -> Tensor:  # fmt: skip
    depth = weight.shape[1]
    columns = weight.shape[0] // 2 if gated else weight.shape[0]
    out = x.new_empty(*x.shape[:-1], columns)
    block_k = triton.next_power_of_2(depth)
    warps = 8 if block_k > 4096 else 4
    block_n = max(1, _VECTORS * 32 * warps // block_k // (2 if gated else 1))
    _skinny[(triton.cdiv(columns, block_n),)](
        x.contiguous(), weight, weight if gain is None else gain, out if residual is None else residual.contiguous(),
        out, x.numel() // depth, columns, depth, eps,
        NORM=gain is not None, GATED=gated, ADD=residual is not None,
        BLOCK_N=block_n, BLOCK_K=block_k, num_warps=warps, **options(x),
    )  # fmt: skip
    return out


def linear(x: Tensor, weight: Tensor) -> Tensor:
    return _launch(x, weight) if fits(x, weight) else reference.linear(x, weight)


def linear_add(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    if fits(x, weight):
        return _launch(x, weight, residual=residual)
    columns = weight.shape[0]
    return torch.addmm(residual.reshape(-1, columns), x.flatten(0, -2), weight.T).view(residual.shape)


def norm_linear(x: Tensor, gain: Tensor, eps: float, weight: Tensor) -> Tensor:
    if fits(x, weight):
        return _launch(x, weight, gain=gain, eps=eps)
    return reference.linear(norm.rms_norm(x, gain, eps), weight)


def norm_gated(x: Tensor, gain: Tensor, eps: float, weight: Tensor) -> Tensor:
    if fits(x, weight):
        return _launch(x, weight, gain=gain, eps=eps, gated=True)
    return swiglu(reference.linear(norm.rms_norm(x, gain, eps), weight))
