"""The outcome of a decode step for one row."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """The first word of a decode step's record."""

    RUNNING = 0  # the step completed a frame of speech
    STOPPED = 1  # the model ended before this frame
    CAPPED = 2  # the frame budget ended before this frame
    LAST = 3  # the step completed a frame, and the model ended with it
    PRIMING = 4  # the step completed no frame yet, see `SpeechSpec.delay_steps`
