"""Rotary position tables."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sonant.layers.rope_scaling import Llama3Scaling, LongRope, Scaling


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
        frequencies = scaled(frequencies, scaling)
    angles = positions.float()[..., None] * frequencies
    angles = torch.cat([angles, angles], dim=-1)[:, :, None]
    cos, sin = angles.cos(), angles.sin()
    if isinstance(scaling, LongRope) and scaling.amplitude != 1:
        cos, sin = cos * scaling.amplitude, sin * scaling.amplitude
    return cos.to(dtype), sin.to(dtype)


def scaled(frequencies: Tensor, scaling: Scaling) -> Tensor:
    if isinstance(scaling, Llama3Scaling):
        return _stretched(frequencies, scaling)
    return frequencies / torch.tensor(scaling.factors, device=frequencies.device)


def _stretched(frequencies: Tensor, by: Llama3Scaling) -> Tensor:
    wavelengths = 2 * math.pi / frequencies
    slow, quick = by.original_positions / by.low_freq_factor, by.original_positions / by.high_freq_factor
    stretched = torch.where(wavelengths > slow, frequencies / by.factor, frequencies)
    share = (by.original_positions / wavelengths - by.low_freq_factor) / (by.high_freq_factor - by.low_freq_factor)
    blended = (1 - share) * stretched / by.factor + share * stretched
    between = ~(wavelengths < quick) & ~(wavelengths > slow)
    return torch.where(between, blended, stretched)
