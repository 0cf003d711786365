"""Rotary position tables."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Llama3Scaling:
    """Stretches slow rotations by `factor`, leaves quick ones alone, and blends between the two."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: float

    def __call__(self, frequencies: Tensor) -> Tensor:
        wavelengths = 2 * math.pi / frequencies
        slow, quick = self.original_positions / self.low_freq_factor, self.original_positions / self.high_freq_factor
        stretched = torch.where(wavelengths > slow, frequencies / self.factor, frequencies)
        share = (self.original_positions / wavelengths - self.low_freq_factor) / (
            self.high_freq_factor - self.low_freq_factor
        )
        blended = (1 - share) * stretched / self.factor + share * stretched
        between = ~(wavelengths < quick) & ~(wavelengths > slow)
        return torch.where(between, blended, stretched)


@dataclass(frozen=True)
class LongRope:
    """Slows each rotation by a factor of its own, and makes all of them larger by `amplitude`."""

    factors: tuple[float, ...]
    amplitude: float = 1.0

    def __call__(self, frequencies: Tensor) -> Tensor:
        return frequencies / torch.tensor(self.factors, device=frequencies.device)


Scaling = Llama3Scaling | LongRope


def rope_tables(
    positions: Tensor, head_dim: int, theta: float | None, dtype: torch.dtype, scaling: Scaling | None = None
) -> tuple[Tensor, Tensor]:
    """cos and sin [B, T, 1, head_dim] for positions [B, T], computed in float32. Without `theta` nothing is rotated."""
    if theta is None:
        still = torch.ones(*positions.shape, 1, head_dim, dtype=dtype, device=positions.device)
        return still, torch.zeros_like(still)
    steps = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / theta**steps
    if scaling is not None:
        frequencies = scaling(frequencies)
    angles = positions.float()[..., None] * frequencies
    angles = torch.cat([angles, angles], dim=-1)[:, :, None]
    cos, sin = angles.cos(), angles.sin()
    if isinstance(scaling, LongRope) and scaling.amplitude != 1:
        cos, sin = cos * scaling.amplitude, sin * scaling.amplitude
    return cos.to(dtype), sin.to(dtype)
