"""Residual units with random values, for tests of their kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sonant.kernels import reference
from sonant.kernels.reference import Snake, Unit


class UnitCall(NamedTuple):
    x: Tensor
    active: Tensor
    unit: Unit
    past: Tensor | None
    following: Snake


def unit_call(
    channels: int, batch: int, steps: int, dilation: int, *, past: bool = True, seed: int = 0, device: str = "cpu"
) -> UnitCall:
    """A call in bfloat16. Its past is a part of a longer line, as the engine keeps it."""
    generator = torch.Generator(device).manual_seed(seed)

    def values(*shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*shape, generator=generator, device=device)).bfloat16()

    def snake() -> Snake:
        return Snake(values(channels, scale=0.3), values(channels, scale=0.3))

    wide = values(channels, 7, channels, scale=(7 * channels) ** -0.5).permute(0, 2, 1)
    point = values(channels, 1, channels, scale=channels**-0.5).permute(0, 2, 1)
    unit = Unit(wide, values(channels), dilation, snake(), point, values(channels))
    flat = values(batch, 16 + unit.history * channels)
    before = flat[:, 16:].view(batch, unit.history, channels) if past else None
    x, active = (values(batch, steps, channels) for _ in range(2))
    return UnitCall(x, active, unit, before, snake())


def wide(part: Any) -> Any:
    """The same values in float32."""
    if isinstance(part, Unit | Snake):
        return type(part)(*(wide(p) for p in part))
    return part.float() if isinstance(part, Tensor) else part


def exact(call: UnitCall) -> tuple[Tensor, Tensor]:
    """The call's results on the same values in float32 arithmetic."""
    return reference.residual_unit(*(wide(part) for part in call))


def error_of(got: Tensor, expected: Tensor) -> float:
    assert got.shape == expected.shape and got.dtype == torch.bfloat16
    return float((got.float() - expected).norm() / expected.norm())
