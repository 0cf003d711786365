"""Residual units with random values, for tests of their kernels."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sonant.kernels import reference
from sonant.kernels.reference import Snake, Unit


class UnitCall(NamedTuple):
    x: Tensor
    unit: Unit
    past: Tensor | None
    following: Snake | None


def unit_call(
    channels: int, batch: int, steps: int, dilation: int, *, past: bool = True, following: bool = False, seed: int = 0
) -> UnitCall:
    """In bfloat16. What came before is a part of a longer line, as the engine keeps it."""
    generator = torch.Generator().manual_seed(seed)

    def values(*shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*shape, generator=generator)).bfloat16()

    def snake() -> Snake:
        return Snake(values(channels, scale=0.3), values(channels, scale=0.3))

    wide = values(channels, 7, channels, scale=(7 * channels) ** -0.5).permute(0, 2, 1)
    point = values(channels, 1, channels, scale=channels**-0.5).permute(0, 2, 1)
    unit = Unit(snake(), wide, values(channels), dilation, snake(), point, values(channels))
    flat = values(batch, 16 + unit.history * channels)
    before = flat[:, 16:].view(batch, unit.history, channels) if past else None
    return UnitCall(values(batch, steps, channels), unit, before, snake() if following else None)


def exact(call: UnitCall) -> tuple[Tensor, Tensor | None]:
    """In float32 arithmetic on the same values."""

    def wide(part: Snake | Tensor | int | None) -> object:
        if isinstance(part, Snake):
            return Snake(part.alpha.float(), part.beta.float())
        return part.float() if isinstance(part, Tensor) else part

    unit = Unit(*(wide(part) for part in call.unit))  # type: ignore[arg-type]
    return reference.residual_unit(wide(call.x), unit, wide(call.past), wide(call.following))  # type: ignore[arg-type]


def error_of(got: Tensor, expected: Tensor) -> float:
    assert got.shape == expected.shape and got.dtype == torch.bfloat16
    return float((got.float() - expected).norm() / expected.norm())
