"""Projections, with the norm that opens a residual branch and the sum that ends it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * scaled.to(x.dtype)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight)


def linear_add(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    """The end of a residual branch. It may be written over `residual`, which is not to be used afterwards."""
    return residual + F.linear(x, weight)


def norm_linear(x: Tensor, gain: Tensor, eps: float, weight: Tensor) -> Tensor:
    """The start of one: RMSNorm with `gain`, then the projection."""
    return F.linear(rms_norm(x, gain, eps), weight)


def norm_gated(x: Tensor, gain: Tensor, eps: float, weight: Tensor) -> Tensor:
    """The same into SwiGLU; the first half of `weight` makes the gate."""
    return swiglu(F.linear(rms_norm(x, gain, eps), weight))


def swiglu(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up
