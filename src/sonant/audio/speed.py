"""Faster or slower speech at the same pitch, while it is still being made: WSOLA.

The output is laid down in hops of 20 ms. Each hop fades from what followed the last segment in the input to a new
segment near where the input should be by now; of the candidates, the one most like what it replaces is taken, so
pitch periods line up and the seam is not heard. Everything is decided from absolute positions in the input,
therefore how it was cut into chunks cannot matter.

    input    ──[last segment][tail ]──────[··search··]──────
                              └ fades into ┘ the best match, whose own tail comes next
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from sonant.errors import BadRequest
from sonant.types import Samples

MIN_SPEED, MAX_SPEED = 0.25, 4.0
HOP_S = 0.020  # longer smears consonants; shorter holds no whole period of a low voice to compare
SEARCH_S = 0.010  # in either direction; together a period of 50 Hz, so that a match always lies within reach
# A far match must be this much better than one where it should be: of many equal periods the nearest is taken,
# which keeps the rhythm even.
_FAR_PENALTY = 0.01


class SpeedChanger:
    """Feed `push`, then `flush` once: `round(samples / speed)` samples in all. Speed 1 gives back what it gets."""

    def __init__(self, sample_rate: int, speed: float) -> None:
        if not MIN_SPEED <= speed <= MAX_SPEED:  # false for NaN too
            raise BadRequest(f"speed must be from {MIN_SPEED} to {MAX_SPEED:g}, not {speed}")
        self.speed = speed
        self.hop = round(HOP_S * sample_rate)
        self.search = round(SEARCH_S * sample_rate)
        self.rise: Samples = (0.5 - 0.5 * np.cos(np.pi * (np.arange(self.hop) + 0.5) / self.hop)).astype(np.float32)
        offsets = np.abs(np.arange(-self.search, self.search + 1))
        self.penalty: npt.NDArray[np.float64] = _FAR_PENALTY * offsets / self.search
        self.fft = 1 << (2 * self.search + self.hop).bit_length()
        self.input: Samples = np.zeros(0, np.float32)
        self.input_start = 0  # where in the whole input `input` begins
        self.tail_at = 0  # where the last segment's natural continuation begins
        self.hops = 0
        self.given = 0  # output samples so far
        self.flushed = False

    def push(self, samples: Samples) -> Samples:
        """What can be played now; it may be nothing yet."""
        if self.flushed:
            raise ValueError("this speed changer was flushed: make a new one for new sound")
        samples = np.ascontiguousarray(samples, np.float32)
        if self.speed == 1:
            return samples
        self.input = np.concatenate([self.input, samples])
        out = []
        while self._needed() <= self._end():
            out.append(self._next_hop())
        return self._give(out)

    def flush(self) -> Samples:
        """The rest, played out into silence; nothing the second time."""
        if self.flushed or self.speed == 1:
            self.flushed = True
            return np.zeros(0, np.float32)
        self.flushed = True
        total = round(self._end() / self.speed)
        out: list[Samples] = []
        missing = total - self.given  # never negative, see `_needed`
        while len(out) * self.hop < missing:
            silence = np.zeros(max(0, self._needed() - self._end()), np.float32)
            self.input = np.concatenate([self.input, silence])
            out.append(self._next_hop())
        return self._give(out)[:missing]

    def _end(self) -> int:
        return self.input_start + len(self.input)

    def _target(self) -> int:
        """Where in the input the next hop should begin, were there no seams to match."""
        return math.floor(self.hops * self.hop * self.speed + 0.5)

    def _needed(self) -> int:
        """How much of the input there must be for the next hop: what it looks at, and what it stands for.

        Without the latter fast speech would run ahead, and be too long if the input ended there.
        """
        stands_for = math.ceil((self.hops + 1) * self.hop * self.speed)
        if self.hops == 0:
            return max(self.hop, stands_for)
        return max(self.tail_at + self.hop, self._target() + self.search + self.hop, stands_for)

    def _next_hop(self) -> Samples:
        if self.hops == 0:
            segment_at = 0
            out = self._slice(0, self.hop).copy()
        else:
            tail = self._slice(self.tail_at, self.hop)
            segment_at = self._best_match(tail)
            segment = self._slice(segment_at, self.hop)
            out = tail + self.rise * (segment - tail)
        self.tail_at = segment_at + self.hop
        self.hops += 1
        self._forget(min(self.tail_at, max(0, self._target() - self.search)))
        return out

    def _best_match(self, tail: Samples) -> int:
        first = max(0, self._target() - self.search)
        last = self._target() + self.search
        region = self._slice(first, last - first + self.hop).astype(np.float64)
        # The product of spectra is the correlation at all offsets at once.
        spectrum = np.fft.rfft(region, self.fft) * np.fft.rfft(tail.astype(np.float64), self.fft).conj()
        dot = np.fft.irfft(spectrum, self.fft)[: last - first + 1]
        energy = np.cumsum(np.concatenate([[0.0], region**2]))
        # The tail's own energy scales all candidates alike. It is there for the penalty: 1 must mean the same sound.
        own = float(np.sum(tail.astype(np.float64) ** 2))
        likeness = dot / (np.sqrt(np.maximum(energy[self.hop :] - energy[: -self.hop], 0.0) * own) + 1e-9)
        return first + int(np.argmax(likeness - self.penalty[len(self.penalty) - len(likeness) :]))

    def _slice(self, at: int, length: int) -> Samples:
        return self.input[at - self.input_start : at - self.input_start + length]

    def _forget(self, before: int) -> None:
        drop = min(max(0, before - self.input_start), len(self.input))
        self.input = self.input[drop:]
        self.input_start += drop

    def _give(self, out: list[Samples]) -> Samples:
        joined = np.concatenate([np.zeros(0, np.float32), *out])
        self.given += len(joined)
        return joined
