"""How many cores there are for this process: fewer than the machine has where its affinity says so."""

from __future__ import annotations

import os

MOST_THREADS = 1024  # to compute with; OpenMP ends the process where it cannot start tens of thousands


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
