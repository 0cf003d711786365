"""How much memory encoders keep, measured in a process of its own: in pytest's, other tests' memory comes and goes."""

from __future__ import annotations

import json
import sys

import numpy as np

from serving.encoded_sound import RATE, voice
from serving.process import resident_mib
from sonant.serving.encode import FORMATS, open_encoder


def six_minutes(form: str) -> list[float]:
    """Resident MiB after each minute of one stream."""
    encoder, minute, after_mib = open_encoder(form, RATE), voice(60.0), []
    for _ in range(6):
        sent = sum(len(encoder.push(piece)) for piece in np.split(minute, 150))
        assert sent > 200_000
        after_mib.append(resident_mib())
    encoder.finish()
    return after_mib


def left_streams(form: str) -> list[float]:
    """Resident MiB after every thirty streams that were begun and left."""
    samples, after_mib = voice(0.2), []
    for _ in range(6):
        for _ in range(30):
            open_encoder(form, RATE).push(samples)
        after_mib.append(resident_mib())
    return after_mib


if __name__ == "__main__":
    print(json.dumps({form: [six_minutes(form), left_streams(form)] for form in sys.argv[1:] or FORMATS}))
