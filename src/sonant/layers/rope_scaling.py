"""How rotations are stretched for long texts: numbers from a checkpoint's config, for `rope.py`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Llama3Scaling:
    """Stretches slow rotations by `factor`, leaves quick ones alone, and blends between the two."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: float


@dataclass(frozen=True)
class LongRope:
    """Slows each rotation by a factor of its own, and multiplies all cos and sin by `amplitude`."""

    factors: tuple[float, ...]
    amplitude: float = 1.0


Scaling = Llama3Scaling | LongRope
