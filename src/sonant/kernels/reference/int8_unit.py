"""A residual unit whose first convolution has both operands in int8, which tensor cores multiply twice as fast as
bfloat16.

It is int8, not e4m3, since a codec's sound is the sum of its convolutions, and three bits of a value are too few for it
(docs/LOG.md). Each channel of the input has a scale, which must be known beforehand so that pieces are rounded like the
whole. It is folded into the weight before that is rounded with a scale for each column.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sonant.kernels.reference.conv import Int8Weight, Snake, Unit, causal_conv, convolve, snake_beta

LARGEST = 127.0  # -128 is not used, since it has no opposite


def int8_weight(weight: Tensor, largest: Tensor) -> Int8Weight:
    """Round a weight [columns, inputs, taps] for inputs up to `largest` [inputs]; what is larger is clipped."""
    inputs = largest.float().clamp(min=1e-9) / LARGEST
    wide = weight.float() * inputs[:, None]
    scale = wide.abs().amax((1, 2)).clamp(min=1e-30) / LARGEST
    values = (wide / scale[:, None, None]).round().to(torch.int8)
    return Int8Weight(values.permute(0, 2, 1).contiguous().permute(0, 2, 1), scale, 1 / inputs)


def int8_lines(x: Tensor, past: Tensor | None, history: int, inverse: Tensor) -> Tensor:
    """past [B, history, I], or silence, followed by x [B, T, I], rounded: [B, history + T, I] int8."""
    lines = F.pad(x, (0, 0, history, 0)) if past is None else torch.cat([past, x], dim=1)
    return (lines.float() * inverse).clamp(-LARGEST, LARGEST).round().to(torch.int8)


def int8_unit(
    x: Tensor, active: Tensor, unit: Unit, past: Tensor | None, following: Snake, *, keep: bool = True
) -> tuple[Tensor, Tensor]:
    """`residual_unit` with `unit.int8` as the first weight: sums are exact, and what follows is rounded as there."""
    assert unit.int8 is not None
    lines = int8_lines(active, past, unit.history, unit.int8.inverse)
    sums = convolve(lines.double(), unit.int8.values.double(), dilation=unit.dilation)
    inner = (sums.float() * unit.int8.scale + unit.wide_bias.float()).to(active.dtype)
    inner = snake_beta(inner, *unit.between)
    return causal_conv(inner, unit.point, unit.point_bias, None, residual=x, snake=following, keep=keep)
