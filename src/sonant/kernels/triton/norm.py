"""RMSNorm, with the residual sum that comes before it: one pass over the row instead of eight."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _add_rms_norm(x, delta, weight, total, out, dim, eps, HAS_DELTA: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < dim
    at = row * dim + column
    dtype = out.dtype.element_ty
    wide = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_DELTA:
        # each result is rounded where the reference rounds it; the arithmetic between is float32
        rounded = (wide + tl.load(delta + at, mask=inside, other=0.0).to(tl.float32)).to(dtype)
        tl.store(total + at, rounded, mask=inside)
        wide = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / dim + eps)
    gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, (gain * (wide * scale).to(dtype).to(tl.float32)).to(dtype), mask=inside)


def _launch(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    x = x.contiguous()
    dim = x.shape[-1]
    out = torch.empty_like(x)
    total = x if delta is None else torch.empty_like(x)
    block = triton.next_power_of_2(dim)
    _add_rms_norm[(x.numel() // dim,)](
        x,
        x if delta is None else delta.contiguous(),
        weight,
        total,
        out,
        dim,
        eps,
        HAS_DELTA=delta is not None,
        BLOCK=block,
        num_warps=max(1, min(8, block // 256)),
    )
    return total, out


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _launch(x, None, weight, eps)[1]


def add_rms_norm(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return _launch(x, delta, weight, eps)
