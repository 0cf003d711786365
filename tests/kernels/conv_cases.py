"""Convolutions with random values, for tests of their kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sonant.kernels import reference
from sonant.kernels.reference import Snake


class ConvCall(NamedTuple):
    x: Tensor
    weight: Tensor
    bias: Tensor
    past: Tensor | None
    dilation: int
    residual: Tensor | None
    snake: Snake | None

    def of(self, convolve: Any, **options: Any) -> tuple[Tensor, Tensor]:
        *given, residual, snake = self
        made: tuple[Tensor, Tensor] = convolve(*given, residual=residual, snake=snake, **options)
        return made


def conv_call(
    inputs: int, columns: int, taps: int, batch: int, steps: int, dilation: int = 1, *, samples: int = 1,
    past: bool = True, residual: bool = False, snake: bool = True, seed: int = 0, device: str = "cpu",
) -> ConvCall:  # fmt: skip
    """A call in bfloat16. Its past is a part of a longer line, as the engine keeps it. `samples`: of each channel."""
    generator = torch.Generator(device).manual_seed(seed)

    def values(*shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*shape, generator=generator, device=device)).bfloat16()

    channels, history = columns // samples, (taps - 1) * dilation
    weight = values(columns, taps, inputs, scale=(taps * inputs) ** -0.5).permute(0, 2, 1)
    before = values(batch, 16 + history * inputs)[:, 16:].view(batch, history, inputs) if past and history else None
    factors = Snake(values(channels, scale=0.3), values(channels, scale=0.3)) if snake else None
    added = values(batch, steps, columns) if residual else None
    return ConvCall(values(batch, steps, inputs), weight, values(channels), before, dilation, added, factors)


def exact_conv_call(call: ConvCall) -> tuple[Tensor, Tensor]:
    """The call's results on the same values in float32 arithmetic."""

    def wide(part: Any) -> Any:
        if isinstance(part, Snake):
            return Snake(part.alpha.float(), part.beta.float())
        return part.float() if isinstance(part, Tensor) else part

    return ConvCall(*(wide(part) for part in call)).of(reference.causal_conv)
