"""A residual unit: in CUDA C++ where that can be had, else of Triton's convolutions."""

from __future__ import annotations

import torch
from torch import Tensor

from sonant.kernels.cuda import unit as in_cuda
from sonant.kernels.reference import Snake, Unit
from sonant.kernels.triton.conv import causal_conv
from sonant.kernels.triton.snake import snake_beta


def residual_unit(x: Tensor, unit: Unit, past: Tensor | None, following: Snake | None) -> tuple[Tensor, Tensor | None]:
    if in_cuda.takes(x, *x.shape) and in_cuda.refusal(x, unit, past, following) is None:
        return in_cuda.residual_unit(x, unit, past, following)
    active = snake_beta(x, *unit.before)
    _, inner = causal_conv(active, unit.wide, unit.wide_bias, past, unit.dilation, snake=unit.between, keep=False)
    _, y = causal_conv(inner, unit.point, unit.point_bias, None, residual=x, snake=following)
    return y, None if past is None else torch.cat([past, active], dim=1)[:, -unit.history :]
