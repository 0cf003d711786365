"""A residual unit: in CUDA C++ where that is available, in eight bits or sixteen, else as two convolutions."""

from __future__ import annotations

from torch import Tensor

from sonant.kernels.cuda import int8_unit
from sonant.kernels.cuda import unit as in_cuda
from sonant.kernels.reference import Snake, Unit
from sonant.kernels.triton.conv import causal_conv


def residual_unit(
    x: Tensor, active: Tensor, unit: Unit, past: Tensor | None, following: Snake, *, keep: bool = True
) -> tuple[Tensor, Tensor]:
    if int8_unit.takes(x, active, unit, past, following):
        return int8_unit.residual_unit(x, active, unit, past, following, keep=keep)
    if in_cuda.takes(x, active, unit, past, following):
        return in_cuda.residual_unit(x, active, unit, past, following, keep=keep)
    _, inner = causal_conv(active, unit.wide, unit.wide_bias, past, unit.dilation, snake=unit.between, keep=False)
    return causal_conv(inner, unit.point, unit.point_bias, None, residual=x, snake=following, keep=keep)
