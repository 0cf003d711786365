"""How long a process keeps a core while another one wants it."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from serving.core_time import CoreUse, thread_uses

_SPIN = "import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"


def turn_s(seconds: float = 1.0) -> float:
    """Return the mean length of a turn while two processes compute on one core."""
    core = max(os.sched_getaffinity(0))
    processes = [_spinning(seconds + 0.5, core) for _ in range(2)]
    time.sleep(0.4)  # until both compute
    before = [_use(process.pid) for process in processes]
    time.sleep(seconds)
    had = [_use(process.pid) - was for process, was in zip(processes, before, strict=True)]
    for process in processes:
        process.wait()
    return sum(use.ran_s for use in had) / max(1, sum(use.turns for use in had))


def _use(pid: int) -> CoreUse:
    return sum(thread_uses(pid).values(), CoreUse())


def _spinning(seconds: float, core: int) -> subprocess.Popen[bytes]:
    """Start it in a session of its own, as an engine is."""
    command = [sys.executable, "-c", _SPIN.format(seconds=seconds)]
    process = subprocess.Popen(command, start_new_session=True)
    os.sched_setaffinity(process.pid, {core})
    return process
