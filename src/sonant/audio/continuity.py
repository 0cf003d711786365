"""Did the listener hear a gap? A simulated one presses play at the first chunk and never waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Continuity:
    gaps: int
    gap_s: float  # silence heard in all
    prebuffer_s: float  # waiting this long before play would have avoided every gap


def continuity(arrivals_s: Sequence[float], durations_s: Sequence[float]) -> Continuity:
    """Chunk i arrives at arrivals_s[i] and lasts durations_s[i]; play starts with the first."""
    gaps, gap_s, worst = 0, 0.0, 0.0
    if not arrivals_s:
        return Continuity(0, 0.0, 0.0)
    played_to = arrivals_s[0]  # when the buffered sound runs out
    heard_s = 0.0
    for arrival, duration in zip(arrivals_s, durations_s, strict=True):
        worst = max(worst, arrival - arrivals_s[0] - heard_s)
        late = arrival - played_to
        if late > 0 and heard_s > 0:
            gaps += 1
            gap_s += late
        played_to = max(played_to, arrival) + duration
        heard_s += duration
    return Continuity(gaps, gap_s, worst)
