"""One spoken sentence as the corpus keeps it: even loudness, fixed margins of silence, whole codec frames.

A fixed short tail lets the talker learn when to stop. Whole frames make encoding in padded batches exact: the
encoder fills a partial last frame by itself, in a way that padding with silence does not reproduce.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE = 24000
FRAME = 1920  # samples of one codec frame
STEP = 240  # samples of one phoneme label: eight to a frame

Samples = NDArray[np.float32]

_LEAD, _TAIL = int(0.08 * SAMPLE_RATE), int(0.16 * SAMPLE_RATE)
_WINDOW = STEP
_SILENCE_BELOW_PEAK_DB = -48.0
_QUIET_BELOW_PEAK_DB = -35.0  # pauses and breaths do not count towards loudness
_LOUDNESS_DB = -23.0
_CEILING = 0.97
_FADE = 120


@dataclass(frozen=True)
class Clip:
    samples: NDArray[np.int16]  # a multiple of FRAME
    labels: NDArray[np.uint8]  # the phoneme id that is spoken in each STEP; 0 is silence


def tidy(samples: Samples, labels: NDArray[np.uint8]) -> Clip | None:
    """`labels` has one id for each STEP of `samples`. None if there is no speech in it."""
    power = _power_db(samples)
    peak = power.max(initial=-200.0)
    if peak < -60 or not np.isfinite(peak):
        return None
    spoken = np.flatnonzero(power > peak + _SILENCE_BELOW_PEAK_DB)
    # Whole steps at the start, so that labels and samples stay together.
    start = int(spoken[0]) * STEP - _LEAD
    end = (int(spoken[-1]) + 1) * STEP + _TAIL
    length = -(-(end - start) // FRAME) * FRAME
    loud = power[power > peak + _QUIET_BELOW_PEAK_DB]
    gain = 10 ** ((_LOUDNESS_DB - 10 * np.log10(np.mean(10 ** (loud / 10)))) / 20)

    cut = _window(samples, start, length) * np.float32(gain)
    cut *= min(1.0, _CEILING / float(np.abs(cut).max()))
    ramp = np.linspace(0, 1, _FADE, dtype=np.float32)
    cut[:_FADE] *= ramp
    cut[-_FADE:] *= ramp[::-1]
    return Clip(np.round(cut * 32767).astype(np.int16), _window(labels, start // STEP, length // STEP))


def labels_of(ids: NDArray[np.int64], durations: NDArray[np.int64], unit: int, samples: int) -> NDArray[np.uint8]:
    """The phoneme at the middle of each STEP, when phoneme i lasts `durations[i]` times `unit` samples."""
    ends = np.cumsum(durations) * unit
    middles = np.arange(-(-samples // STEP)) * STEP + STEP // 2
    return ids[np.searchsorted(ends, middles, side="right").clip(max=len(ids) - 1)].astype(np.uint8)


def _power_db(samples: Samples) -> NDArray[np.float64]:
    whole = samples[: len(samples) // _WINDOW * _WINDOW].reshape(-1, _WINDOW)
    return 10 * np.log10(np.mean(np.square(whole, dtype=np.float64), axis=1) + 1e-12)


def _window(values: NDArray, start: int, length: int) -> NDArray:
    """values[start : start + length], with zeros where that reaches outside."""
    out = np.zeros(length, values.dtype)
    first, last = max(start, 0), min(start + length, len(values))
    out[first - start : last - start] = values[first:last]
    return out
