"""What processes had of the cores, and for how long they wanted one in vain: what a clock on a shared machine hides."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


class CoreWait:
    """For how long processes were ready to run and did not, as the scheduler counts it for each thread.

    Of a process only the thread that waited longest counts: a request goes through one after the other, and threads
    that wait beside each other hold it up once.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._threads = [_opened(pid) for pid in pids]

    def look(self) -> list[list[int]]:
        return [[_waited_ns(file) for file in files] for files in self._threads]

    def since_s(self, before: list[list[int]]) -> float:
        pairs = (zip(was, now, strict=True) for was, now in zip(before, self.look(), strict=True))
        return sum(max((late - early for early, late in threads), default=0) for threads in pairs) / 1e9

    def close(self) -> None:
        for file in (file for files in self._threads for file in files):
            os.close(file)


def _opened(pid: int) -> list[int]:
    """Threads that there are now."""
    files = []
    for task in (Path("/proc") / str(pid) / "task").iterdir():
        with suppress(OSError):
            files.append(os.open(task / "schedstat", os.O_RDONLY))
    return files


def _waited_ns(file: int) -> int:
    try:
        return int(os.pread(file, 100, 0).split()[1])
    except ProcessLookupError:  # It has ended since.
        return 0


def core_s(pids: Iterable[int]) -> float:
    """Seconds of a core that these have used in all; one that has ended counts nothing."""
    ticks = 0
    for pid in pids:
        with suppress(OSError):
            fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS
