"""Sound as 16-bit numbers: the one place where floats are rounded, and the two WAV headers.

Full scale is 32768 in both directions, as in libav and libsndfile's readers: 16-bit sound that is read (divided by
32768) and written again is the same sound, and every format comes out equally loud. The price is that +1.0 itself
has no number and becomes 32767.
"""

from __future__ import annotations

import struct

import numpy as np

from sonant.errors import EngineError
from sonant.types import Pcm, Samples

NO_SOUND = "the model made samples that are NaN or infinite: its weights may be damaged"

_FULL_SCALE = 32768.0
_UNKNOWN_BYTES = 0xFFFFFFFF  # the usual size in the header of a WAV that is still growing
_HEADER_BYTES = 44


def clipped(samples: Samples) -> Samples:
    """The samples clipped to -1..1. Raises `EngineError` for NaN or infinity: silence instead would hide a fault."""
    if not np.isfinite(samples).all():
        raise EngineError(NO_SOUND)
    return np.clip(samples, -1.0, 1.0)


def pcm16(samples: Samples | Pcm) -> Pcm:
    """Little-endian 16-bit samples, rounded to the nearest step (halves to the even one) and clipped, never wrapped."""
    if samples.dtype == np.int16:
        return samples.astype("<i2", copy=False)
    return np.minimum(np.rint(clipped(as_float(samples)) * _FULL_SCALE), 32767).astype("<i2")


def as_float(samples: Samples | Pcm) -> Samples:
    """Samples in -1..1, of whichever kind they are."""
    if samples.dtype == np.int16:
        return samples.astype(np.float32) / np.float32(_FULL_SCALE)
    return samples.astype(np.float32, copy=False)


def growing_wav_header(sample_rate: int) -> bytes:
    """The header for 16-bit mono of a length not known yet; players read on to the end."""
    return _wav_header(sample_rate, _UNKNOWN_BYTES, _UNKNOWN_BYTES)


def wav_header(sample_rate: int, sample_count: int) -> bytes:
    """The header for 16-bit mono of just this length."""
    data_bytes = 2 * sample_count
    if _HEADER_BYTES + data_bytes > _UNKNOWN_BYTES:
        raise ValueError(f"{sample_count:,} samples do not fit in a WAV file: write it in parts, or as FLAC")
    return _wav_header(sample_rate, _HEADER_BYTES - 8 + data_bytes, data_bytes)


def _wav_header(sample_rate: int, riff_bytes: int, data_bytes: int) -> bytes:
    fmt = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, sample_rate, 2 * sample_rate, 2, 16)
    return struct.pack("<4sI4s", b"RIFF", riff_bytes, b"WAVE") + fmt + struct.pack("<4sI", b"data", data_bytes)
