"""Where the time goes from the start of a process until its engine answers, for one line in the log."""

from __future__ import annotations

import os
import time
from pathlib import Path


class StartTimes:
    """Seconds by phase, in the order in which phases first came."""

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}
        self._since_s = time.monotonic()

    def took(self, phase: str) -> None:
        """What has passed since the last call went into this phase."""
        now_s = time.monotonic()
        self.phases[phase] = self.phases.get(phase, 0.0) + now_s - self._since_s
        self._since_s = now_s

    def came_before(self, phase: str, seconds: float) -> None:
        """What was over before anybody counted."""
        self.phases = {phase: seconds, **self.phases}

    @property
    def total_s(self) -> float:
        return sum(self.phases.values())

    def __str__(self) -> str:
        return f"{self.total_s:.2f} s: " + ", ".join(f"{phase} {s:.2f}" for phase, s in self.phases.items())


def process_age_s() -> float | None:
    """Since this process was started, where the system tells."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s
    except (OSError, AttributeError, ValueError, IndexError):
        return None
