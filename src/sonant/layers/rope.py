"""Rotary position tables."""

from __future__ import annotations

import torch
from torch import Tensor


def rope_tables(positions: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin [B, T, 1, head_dim] for positions [B, T], computed in float32."""
    steps = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.int64).float() / head_dim
    angles = positions.float()[..., None] * (1.0 / theta**steps)
    angles = torch.cat([angles, angles], dim=-1)[:, :, None]
    return angles.cos().to(dtype), angles.sin().to(dtype)
