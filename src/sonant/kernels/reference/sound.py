"""Sound as it leaves the device."""

from __future__ import annotations

import torch
from torch import Tensor

_FULL_SCALE = 32768.0


def pcm16(sound: Tensor) -> Tensor:
    """Samples [B, N] in -1..1 → [B, N + 1] int16: rounded to the nearest step (halves to the even one), clipped, and
    behind them 1 where all of a row were numbers, else 0 and silence: what is no number cannot be sound."""
    numbers = torch.isfinite(sound).all(1, keepdim=True)
    steps = (sound.float().clamp(-1, 1) * _FULL_SCALE).round().clamp(max=_FULL_SCALE - 1)
    return torch.cat([steps.where(numbers, 0), numbers], 1).to(torch.int16)
