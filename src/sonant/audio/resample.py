"""Changes the sample rate of sound that is still being made, with the same result as for the whole sound.

soxr's HQ filter works in blocks and looks ahead. From 24 kHz, input samples until the first output, how much of
the first 1,920-sample frame comes out with it, and how far the output then trails the input right after a frame:

     8 kHz   1,758 samples (73 ms)   61 of 80 ms   at most 73 ms
    16 kHz     879 samples (37 ms)   61 of 80 ms   at most 37 ms
    48 kHz     927 samples (39 ms)   69 of 80 ms   at most 39 ms

So the first frame always gives sound at once. At 24 kHz nothing is done and nothing is buffered.
"""

from __future__ import annotations

import numpy as np
import soxr

from sonant.types import Samples


class StreamResampler:
    """Feed `push`, then `flush` once. However the sound is cut into chunks, the output is the same."""

    def __init__(self, from_rate: int, to_rate: int) -> None:
        same = from_rate == to_rate
        self.stream = None if same else soxr.ResampleStream(from_rate, to_rate, 1, dtype="float32", quality="HQ")
        self.flushed = False

    def push(self, samples: Samples) -> Samples:
        """What can be played now; it may be nothing yet."""
        if self.flushed:
            raise ValueError("this resampler was flushed: make a new one for new sound")
        samples = np.ascontiguousarray(samples, np.float32)
        return samples if self.stream is None else self.stream.resample_chunk(samples)

    def flush(self) -> Samples:
        """What the filter still has; nothing the second time."""
        nothing = np.zeros(0, np.float32)
        if self.flushed or self.stream is None:
            self.flushed = True
            return nothing
        self.flushed = True
        return self.stream.resample_chunk(nothing, last=True)
