"""Whether two answers are the same sound, in raw samples of 16 bits (or WAV, whose header is compared with them)."""

from __future__ import annotations

import numpy as np


def same_sound(one: bytes, other: bytes) -> bool:
    """Whether they are equal but for rounding, which depends on the sizes of chunks, and these on timing."""
    if len(one) != len(other) or not one:
        return False
    samples = [np.frombuffer(content, "<i2").astype(np.int32) for content in (one, other)]
    return int(np.abs(samples[0] - samples[1]).max()) <= 2
