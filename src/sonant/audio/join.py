"""Joins utterances that were made apart into one sound without clicks.

Each part starts and ends at whatever level its model left it. A short fade at both sides of every seam takes the
step out; for that the last few milliseconds of a part are buffered until it is known whether more of it follows.
"""

from __future__ import annotations

import numpy as np

from sonant.types import Samples

FADE_S = 0.008


class Joiner:
    """Feed `push` with the sound of a part and call `seam` where it ends and another begins.

    Sound of 16 bits comes out as such: only what is faded is rounded again.
    """

    def __init__(self, sample_rate: int) -> None:
        fade = round(FADE_S * sample_rate)
        self.rise: Samples = (0.5 - 0.5 * np.cos(np.pi * (np.arange(fade) + 0.5) / fade)).astype(np.float32)
        # Of 16 bits, since nothing has told the type of the sound yet: joined to floats, even these become floats.
        self.buffered: Samples = np.zeros(0, np.int16)
        self.faded_in = len(self.rise)  # samples of this part's fade already given; the first part has none

    def push(self, samples: Samples) -> Samples:
        """What can be played now."""
        samples = samples.copy()
        rest = self.rise[self.faded_in :][: len(samples)]
        samples[: len(rest)] = _scaled(samples[: len(rest)], rest)
        self.faded_in += len(rest)
        ready = np.concatenate([self.buffered, samples])
        self.buffered = ready[max(0, len(ready) - len(self.rise)) :]
        return ready[: len(ready) - len(self.buffered)]

    def seam(self) -> Samples:
        """The end of a part, faded out; the next `push` fades in."""
        tail = self.end()
        self.faded_in = 0
        return _scaled(tail, self.rise[::-1][len(self.rise) - len(tail) :])

    def end(self) -> Samples:
        """What is still buffered when the last part is over."""
        tail = self.buffered
        self.buffered = tail[:0]
        return tail


def _scaled(samples: Samples, gain: Samples) -> Samples:
    scaled = samples * gain
    return scaled if samples.dtype == np.float32 else np.rint(scaled).astype(samples.dtype)
