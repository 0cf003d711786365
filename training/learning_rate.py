"""The learning rate of a run that is cut into pieces: a warm-up by steps, then a cosine over the whole run."""

from __future__ import annotations

import math
from typing import Protocol


class RateSchedule(Protocol):
    @property
    def learning_rate(self) -> float: ...

    @property
    def final_learning_rate(self) -> float: ...

    @property
    def warmup_steps(self) -> int: ...


def learning_rate(schedule: RateSchedule, progress: float, since_restart: int) -> float:
    """`progress` is the share of the whole run that has passed, `since_restart` the steps with this optimiser: one
    that starts anew needs a warm-up of its own, wherever the cosine is."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    rate = schedule.final_learning_rate + (schedule.learning_rate - schedule.final_learning_rate) * cosine
    return rate * min(1.0, (since_restart + 1) / schedule.warmup_steps)
