"""A codec's ops: convolutions over [B, T, C], channels last, their activation, and samples as they leave the device.

Convolutions of float32 are in float32: by default cuDNN would round their inputs to TF32, which has ten bits. The
switch for that in torch.backends applies to the whole process, which is not ours, and two threads that flip it and set
it back can leave it wrong. The operator beneath torch's convolutions takes it as an argument of the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.backends import cudnn

_FULL_SCALE = 32768.0


class Snake(NamedTuple):
    """SnakeBeta's parameters, by channel; see `snake_beta`."""

    alpha: Tensor
    beta: Tensor
    log_scale: bool = True


class Int8Weight(NamedTuple):
    """A convolution's weight in int8, for inputs that are rounded to int8, too: see int8_unit.py."""

    values: Tensor  # [columns, inputs, taps] int8, with the inputs last in memory
    scale: Tensor  # [columns] float32: the value of 1 in a sum of products
    inverse: Tensor  # [inputs] float32: the factor of an input before it is rounded


class Unit(NamedTuple):
    """A residual unit of activated values: a dilated causal convolution [C, C, 7], SnakeBeta, and a convolution of a
    single tap [C, C, 1]. With many values a kernel may use the first one's weight in eight bits."""

    wide: Tensor
    wide_bias: Tensor
    dilation: int
    between: Snake
    point: Tensor
    point_bias: Tensor
    int8: Int8Weight | None = None

    @property
    def history(self) -> int:
        return (self.wide.shape[2] - 1) * self.dilation


class Bounds(NamedTuple):
    """Where results are valid: steps [start · scale + offset, end · scale + offset) of each row; all others are zero.

    `scale` and `offset` let one pair of tensors serve layers of every rate and position. In a transposed convolution a
    step is one sample.
    """

    start: Tensor  # [B] integers
    end: Tensor
    scale: int = 1
    offset: int = 0


def causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    past: Tensor | None,
    dilation: int = 1,
    *,
    residual: Tensor | None = None,
    snake: Snake | None = None,
    keep: bool = True,
    bounds: Bounds | None = None,
) -> tuple[Tensor, Tensor]:
    """Convolve x [B, T, I] with weight [N, I, K] → the sum with bias and residual, and the same after SnakeBeta.

    `past` [B, (K - 1) · dilation, I] precedes x; None: silence does. If bias and snake have fewer channels than the
    weight has columns, columns are samples of channels, all channels of the first sample first. `keep=False`:
    only the second result is wanted. Without `snake` both are the same. With `bounds` both are zero outside of them.
    """
    history = (weight.shape[2] - 1) * dilation
    if history:
        x = F.pad(x, (0, 0, history, 0)) if past is None else torch.cat([past, x], dim=1)
    y = convolve(x, weight, dilation=dilation)
    shape = y.shape
    y = (y.reshape(len(y), -1, len(bias)) + bias).view(shape) if len(bias) < shape[2] else y + bias
    if residual is not None:
        y = y + residual
    if bounds is not None:
        y = torch.where(inside(bounds, y.shape[1] * shape[2] // len(bias)), y.reshape(len(y), -1, len(bias)), 0)
        y = y.view(shape)  # SnakeBeta of zero is zero
    if snake is None:
        return y, y
    return y, snake_beta(y.reshape(len(y), -1, len(snake.alpha)), *snake).view(shape)


def residual_unit(
    x: Tensor, active: Tensor, unit: Unit, past: Tensor | None, following: Snake, *, keep: bool = True
) -> tuple[Tensor, Tensor]:
    """x [B, T, C] plus the unit's result, and the same after `following`. `active` is x after an activation of its
    own, the unit's input, and `past` [B, history, C] precedes that; None: silence does.

    `keep=False`: only the second result is wanted.
    """
    _, inner = causal_conv(active, unit.wide, unit.wide_bias, past, unit.dilation, snake=unit.between, keep=False)
    return causal_conv(inner, unit.point, unit.point_bias, None, residual=x, snake=following)


def convolve(x: Tensor, weight: Tensor, *, stride: int = 1, dilation: int = 1) -> Tensor:
    """Convolve [B, T, C] → [B, T', C'] without padding, as a flat image, since only images can have channels last."""
    if weight.shape[2] == 1 and stride == 1:
        return F.linear(x, weight[:, :, 0])
    y = exact_conv(x.mT.unsqueeze(2), weight.unsqueeze(2), stride=(1, stride), dilation=(1, dilation))
    return y.squeeze(2).mT


def depthwise(
    x: Tensor, weight: Tensor, bias: Tensor, past: Tensor | None, dilation: int = 1, *, snake: Snake | None = None
) -> Tensor:
    """Convolve each channel of x [B, T, C] by itself, with weight [C, 1, K] → [B, T, C], after SnakeBeta if given.

    `past` [B, (K - 1) · dilation, C] precedes x; None: silence does.
    """
    history = (weight.shape[2] - 1) * dilation
    x = F.pad(x, (0, 0, history, 0)) if past is None else torch.cat([past, x], dim=1)
    flat = x.mT.unsqueeze(2)
    y = exact_conv(flat, weight.unsqueeze(2), bias, stride=(1, 1), dilation=(1, dilation), groups=x.shape[-1])
    y = y.squeeze(2).mT
    return y if snake is None else snake_beta(y, *snake)


def inside(bounds: Bounds, steps: int) -> Tensor:
    """Which of a piece's steps are within the bounds: [B, steps, 1]."""
    step = torch.arange(steps, device=bounds.start.device)
    start, end = (edge[:, None] * bounds.scale + bounds.offset for edge in bounds[:2])
    return ((start <= step) & (step < end))[..., None]


def snake_beta(x: Tensor, alpha: Tensor, beta: Tensor, log_scale: bool = True) -> Tensor:
    """x + sin²(x·e^α) / (e^β + 1e-9) by channel, or without `log_scale` x + sin²(x·α) / (β + 1e-9). x [B, T, C].

    α and β may have more precision than x; the result has x's.
    """
    if log_scale:
        alpha, beta = alpha.exp(), beta.exp()
    y = x + torch.sin(x * alpha).square() / (beta + 1e-9)
    return y if y.dtype == x.dtype else y.to(x.dtype)


def exact_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, stride: Sequence[int], dilation: Sequence[int],
    groups: int = 1,
) -> Tensor:  # fmt: skip
    """Convolve x [B, C, T] or [B, C, H, W] without padding; `stride` and `dilation` are for the dimensions after C.

    For training these are torch's own convolutions, with the precision and autocast that the trainer has set.
    """
    dims = len(stride)
    if x.dtype != torch.float32 or torch.is_grad_enabled() or torch.is_autocast_enabled(x.device.type):
        convolution = F.conv1d if dims == 1 else F.conv2d
        return convolution(x, weight, bias, stride, 0, dilation, groups)
    none = [0] * dims
    deterministic = cudnn.deterministic or torch.are_deterministic_algorithms_enabled()
    return torch._convolution(
        x, weight, bias, stride, none, dilation, False, none, groups, cudnn.benchmark, deterministic, cudnn.enabled,
        allow_tf32=False,
    )  # fmt: skip


def pcm16(sound: Tensor) -> Tensor:
    """Samples [B, N] in -1..1 → [B, N + 1] int16: rounded to the nearest step (halves to the even one), clipped, and
    followed by 1. If any sample of a row is NaN or infinite, which cannot be sound, all of the row is 0."""
    numbers = torch.isfinite(sound).all(1, keepdim=True)
    steps = (sound.float().clamp(-1, 1) * _FULL_SCALE).round().clamp(max=_FULL_SCALE - 1)
    return torch.cat([steps.where(numbers, 0), numbers], 1).to(torch.int16)
