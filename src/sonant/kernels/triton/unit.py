"""A residual unit: in CUDA C++ where that can be had, else of two convolutions."""

from __future__ import annotations

from torch import Tensor

from sonant.kernels.cuda import int8_conv
from sonant.kernels.cuda import unit as in_cuda
from sonant.kernels.reference import Snake, Unit
from sonant.kernels.triton.conv import causal_conv


def residual_unit(
    x: Tensor, active: Tensor, unit: Unit, past: Tensor | None, following: Snake, *, keep: bool = True
) -> tuple[Tensor, Tensor]:
    if in_cuda.takes(x, active, unit, past, following):
        return in_cuda.residual_unit(x, active, unit, past, following, keep=keep)
    inner = _widely(active, unit, past)
    return causal_conv(inner, unit.point, unit.point_bias, None, residual=x, snake=following, keep=keep)


def _widely(active: Tensor, unit: Unit, past: Tensor | None) -> Tensor:
    """The first convolution and what follows it, in eight bits where there are such weights and much to do."""
    if unit.int8 is not None:
        given = (active, unit.int8, unit.wide_bias, past, unit.dilation, unit.between)
        if int8_conv.takes(*given):
            return int8_conv.int8_conv(*given)
    return causal_conv(active, unit.wide, unit.wide_bias, past, unit.dilation, snake=unit.between, keep=False)[1]
