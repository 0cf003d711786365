"""When the device had nothing to do, and why.

Each idle stretch is divided among its causes, so that their times add up to the idle time and none is counted twice:

- device: the next work was launched in time; what is left is the cost of one more kernel, or a dependency;
- sync: the host waited for the device to run dry, then had to fill it again;
- allocation: the host asked the driver for memory;
- preparation: a graph was captured or code was loaded;
- pause: the step thread made no call for a while: Python, a lock, garbage collection;
- launch: the host was launching all the time and could not keep up.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from sonant.profiling.events import Ints, Trace
from sonant.profiling.launches import ALLOCATION, PREPARATION, SYNC, Launches, named
from sonant.profiling.steps import Steps

_PAUSE_NS = 100_000  # shorter stretches without a call are the Python code between two launches
_LATENCY_NS = 2_000  # from the end of a launch to the first moment its work can begin
_JUST_NS = 2_000  # tolerance between two clocks, or between a call and its work


class Cause(IntEnum):
    DEVICE = 0
    SYNC = 1
    ALLOCATION = 2
    PAUSE = 3
    LAUNCH = 4
    PREPARATION = 5


_CALLS = ((Cause.SYNC, SYNC), (Cause.ALLOCATION, ALLOCATION), (Cause.PREPARATION, PREPARATION))


@dataclass(frozen=True)
class Gaps:
    """One row for each section of an idle stretch that has one cause."""

    start: Ints
    end: Ints
    cause: Ints
    step: Ints  # the step it lies in; -1 if it lies in none
    call: Ints  # the runtime call to blame (a wait, an allocation); -1 if there is none

    @property
    def duration(self) -> Ints:
        return self.end - self.start


def busy_union(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Stretches in which something ran, from events sorted by start."""
    reach = np.maximum.accumulate(end)
    first = np.append(True, start[1:] > reach[:-1])
    last = np.append(first[1:], True)
    return start[first], reach[last]


def added(start: Ints, end: Ints) -> Ints:
    """How long each event kept the device busy after all events that began before it. Events are sorted by start.

    A kernel that is launched early, to be ready when the one before it ends, waits inside its own duration. Durations
    would count that time twice; these times add up to what `busy_union` covers.
    """
    before = np.append(start[:1], np.maximum.accumulate(end)[:-1])
    return np.maximum(0, end - np.maximum(start, before))


def find_gaps(trace: Trace, launched: Launches, steps: Steps) -> Gaps:
    device = trace.device
    starts, ends = busy_union(device.start, device.end)
    idle_from, idle_to = ends[:-1], starts[1:]
    step = np.searchsorted(steps.start, idle_from, side="right") - 1
    inside = (step >= 0) & (idle_to <= steps.end[np.maximum(step, 0)] + _JUST_NS)
    idle_from, idle_to, step = idle_from[inside], idle_to[inside], step[inside]
    nexts = np.searchsorted(device.start, idle_to)
    divider = _Divider(trace, steps)
    rows: list[tuple[int, int, int, int, int]] = []
    # On a CPU nothing is launched ahead, so the time between two operators is the host's own.
    called = idle_to if trace.stand_in else launched.start[nexts]
    in_time = _in_time(launched, nexts, idle_from) & (not trace.stand_in)
    for i in np.flatnonzero(in_time).tolist():
        rows.append((int(idle_from[i]), int(idle_to[i]), Cause.DEVICE, int(step[i]), -1))
    for i in np.flatnonzero(~in_time).tolist():
        for start, end, cause, call in divider.divide(int(idle_from[i]), int(called[i]), int(idle_to[i])):
            rows.append((start, end, cause, int(step[i]), call))
    table: npt.NDArray[np.int64] = np.array(sorted(rows), np.int64).reshape(-1, 5)
    return Gaps(*table.T)


def _in_time(launched: Launches, nexts: Ints, idle_from: Ints) -> npt.NDArray[np.bool_]:
    """Whether the call had ended before the device went idle. Later kernels of a graph need no call of their own."""
    first = np.zeros(len(launched.call), bool)
    first[np.unique(launched.call, return_index=True)[1]] = True
    early = launched.end[nexts] + _LATENCY_NS <= idle_from
    mask: npt.NDArray[np.bool_] = early | ~first[nexts] | (launched.call[nexts] < 0)
    return mask


class _Divider:
    """Divides an idle stretch by what the step thread was calling."""

    def __init__(self, trace: Trace, steps: Steps) -> None:
        runtime = trace.runtime
        mine = np.arange(len(runtime)) if steps.thread is None else np.flatnonzero(runtime.track == steps.thread)
        self.at = mine
        self.start, self.end = runtime.start[mine], runtime.end[mine]
        self.cause = np.full(len(runtime), -1)
        for cause, pattern in _CALLS:
            self.cause[named(runtime, trace.names, pattern)] = cause
        self.cause = self.cause[mine]

    def divide(self, begin: int, called: int, end: int) -> list[tuple[int, int, int, int]]:
        """Sections of [begin, end), each with start, end, cause and call. The next work's call began at `called`."""
        first = max(0, int(np.searchsorted(self.start, begin)) - 2)  # a driver call may lie inside a runtime call
        last = int(np.searchsorted(self.start, called, side="right"))
        waited = -1  # the wait that ended when the device had run dry, if any
        sections: list[tuple[int, int, int, int]] = []
        now = begin
        for i in range(first, last):
            start, stop = int(self.start[i]), min(int(self.end[i]), called)
            if self.cause[i] == Cause.SYNC and self.end[i] >= begin - _JUST_NS:
                waited = int(self.at[i])
            if stop <= now:
                continue
            if start > now:
                sections.append(self._quiet(now, start, waited))
                now = start
            if self.cause[i] < 0:
                sections.append(self._busy(now, stop, waited))
            else:
                sections.append((now, stop, int(self.cause[i]), int(self.at[i])))
            now = stop
        if now < called:
            sections.append(self._quiet(now, called, waited))
            now = called
        if now < end:
            sections.append(self._busy(now, end, waited))
        return _joined(sections)

    @staticmethod
    def _quiet(start: int, end: int, waited: int) -> tuple[int, int, int, int]:
        if end - start >= _PAUSE_NS:
            return (start, end, Cause.PAUSE, -1)
        return _Divider._busy(start, end, waited)

    @staticmethod
    def _busy(start: int, end: int, waited: int) -> tuple[int, int, int, int]:
        """A section of launching. The wait that emptied the queue is to blame, if there was one."""
        return (start, end, Cause.SYNC if waited >= 0 else Cause.LAUNCH, waited)


def _joined(sections: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Merge neighbours with the same cause: launching is many calls with a little Python between, but one gap."""
    whole: list[tuple[int, int, int, int]] = []
    for section in sections:
        if whole and whole[-1][2:] == section[2:]:
            section = (whole.pop()[0], *section[1:])
        whole.append(section)
    return whole
