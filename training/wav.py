"""Sound to hear, as a file that every player opens."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def write_wav(path: Path, samples: NDArray[np.int16], rate: int) -> None:
    with wave.open(str(path), "wb") as w:
        w.setparams((1, 2, rate, 0, "NONE", ""))
        w.writeframes(samples.astype("<i2").tobytes())
