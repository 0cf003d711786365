"""Sound for tests: a voice-like tone that is the same on every machine."""

from __future__ import annotations

import numpy as np

from sonant.types import Samples

SAMPLE_RATE = 24_000


def reference_clip(seconds: float = 1.7, sample_rate: int = SAMPLE_RATE) -> tuple[Samples, int]:
    """The clip that the golden files were made from."""
    t = np.arange(int(seconds * sample_rate)) / sample_rate
    swelling = 0.4 * np.sin(2 * np.pi * 220 * t) * (0.5 + 0.5 * np.sin(2 * np.pi * 3 * t))
    wavering = 0.2 * np.sin(2 * np.pi * 660 * t + np.sin(2 * np.pi * 5 * t))
    return (swelling + wavering).astype(np.float32), sample_rate
