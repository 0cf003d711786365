"""How a decode step of a row came out."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """The first word of a decode step's record."""

    RUNNING = 0  # it completed a frame, which is speech
    STOPPED = 1  # the model ended before it
    CAPPED = 2  # the frame budget ended before it
    LAST = 3  # it completed a frame, and with that the model ended
    PRIMING = 4  # it completed no frame yet, see `SpeechSpec.delay_steps`
