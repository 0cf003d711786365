"""How long processes had a core, and how long they waited for one, which wall time does not tell."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


class CoreWait:
    """How long processes were ready to run and did not, as the scheduler counts it for each thread.

    Of each process only the thread that waited longest counts: a request goes through processes one after the other,
    and threads that wait at the same time delay it only once.
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
    """Open the scheduler's counts of the threads that there are now."""
    files = []
    for task in (Path("/proc") / str(pid) / "task").iterdir():
        with suppress(OSError):
            files.append(os.open(task / "schedstat", os.O_RDONLY))
    return files


def _waited_ns(file: int) -> int:
    try:
        return int(os.pread(file, 100, 0).split()[1])
    except ProcessLookupError:  # The thread has ended since.
        return 0


@dataclass(frozen=True)
class CoreUse:
    """What the scheduler counts for a thread, or for several, to the nanosecond."""

    ran_s: float = 0.0
    waited_s: float = 0.0  # ready to run, but without a core
    turns: int = 0  # times that it got a core

    def __add__(self, other: CoreUse) -> CoreUse:
        return CoreUse(self.ran_s + other.ran_s, self.waited_s + other.waited_s, self.turns + other.turns)

    def __sub__(self, other: CoreUse) -> CoreUse:
        return CoreUse(self.ran_s - other.ran_s, self.waited_s - other.waited_s, self.turns - other.turns)


def thread_uses(pid: int) -> dict[int, CoreUse]:
    """The use of each thread by its id, since the thread was started."""
    uses = {}
    with suppress(OSError):
        for task in (Path("/proc") / str(pid) / "task").iterdir():
            with suppress(OSError):
                ran_ns, waited_ns, turns = map(int, (task / "schedstat").read_text().split())
                uses[int(task.name)] = CoreUse(ran_ns / 1e9, waited_ns / 1e9, turns)
    return uses


def core_s(pids: Iterable[int]) -> float:
    """Core seconds that these processes have used in all; one that has ended counts as 0."""
    ticks = 0
    for pid in pids:
        with suppress(OSError):
            fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS


def descendants(pid: int) -> list[int]:
    """The present children of a process, and theirs."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (parent := parent_of(int(entry.name))) is not None:
            parents[int(entry.name)] = parent
    found, look = [], [pid]
    while look:
        new = [child for child, parent in parents.items() if parent in look]
        found += new
        look = new
    return found


def parent_of(pid: int) -> int | None:
    try:
        return int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def busy_s() -> float:
    """Core seconds that all processes of this machine, and the system for them, have used since it was started."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8])
    return (user + nice + system + irq + softirq) / _TICKS


def wait_for_quiet(patience_s: float, most: float = 0.35) -> float:
    """Wait until all processes together use less than `most` cores, or patience ends → cores used in that second."""
    deadline_s = time.monotonic() + patience_s
    while True:
        before_s, began_s = busy_s(), time.monotonic()
        time.sleep(1.0)
        used = (busy_s() - before_s) / (time.monotonic() - began_s)
        if used < most or time.monotonic() > deadline_s:
            return used
