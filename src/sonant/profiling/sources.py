"""Finds the source of work: the operator and the line of Python that a host thread was running at some moment."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from sonant.profiling.events import Events, Trace
from sonant.profiling.launches import Launches, launches

# Frames of these files say where Python was, but not which code is responsible.
_FOREIGN = re.compile(
    r"torch/(nn|_|utils|cuda|autograd|profiler|library|functional|jit)|site-packages/torch/|^<built-in|^<string>|<frozen|"
    r"engine/(step_profiler|recorder)\.py|threading\.py|contextlib\.py|functools\.py|^nn\.Module|triton/(runtime|compiler|backends)|^torch/|concurrent/futures|asyncio/"
)
_LOOKUPS = 6  # launches of a kernel that are looked up, of which the most common source is taken


class Sources:
    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def of_device(self, launched: Launches, event: int) -> str | None:
        """The source of work on the device. Work in a graph has no operator: its source is the launch of the graph."""
        thread = int(launched.thread[event])
        if thread < 0:
            return None
        return self.at(thread, int(launched.start[event]))

    def exact(self, launched: Launches, event: int) -> bool:
        """Whether both the operator and the line of Python are known, as they are not for work in a graph."""
        thread, moment = int(launched.thread[event]), int(launched.start[event])
        return self.op_at(thread, moment) is not None and self.line_at(thread, moment) is not None

    def at(self, thread: int, moment_ns: int) -> str | None:
        """ "aten::item at model.py(12): forward", as much of it as the trace tells."""
        op, line = self.op_at(thread, moment_ns), self.line_at(thread, moment_ns)
        if op is None and line is None:
            return self.range_at(thread, moment_ns)
        return " at ".join(part for part in (op, line) if part is not None)

    def op_at(self, thread: int, moment_ns: int) -> str | None:
        """The outermost operator: `aten::item` and not the copy inside it."""
        around = _around(self.trace.ops, thread, moment_ns)
        return self.trace.name_of(self.trace.ops, around[0]) if around else None

    def line_at(self, thread: int, moment_ns: int) -> str | None:
        """The innermost Python frame that is not a library's, or else the innermost one."""
        names = [self.trace.name_of(self.trace.python, i) for i in _around(self.trace.python, thread, moment_ns)]
        mine = [name for name in names if not _FOREIGN.search(name)]
        return mine[-1] if mine else names[-1] if names else None

    def frame_at(self, thread: int, moment_ns: int) -> str | None:
        """The innermost frame of any kind: what a pause was spent in."""
        around = _around(self.trace.python, thread, moment_ns)
        return self.trace.name_of(self.trace.python, around[-1]) if around else None

    def range_at(self, thread: int, moment_ns: int) -> str | None:
        around = _around(self.trace.ranges, thread, moment_ns)
        return f"range {self.trace.name_of(self.trace.ranges, around[-1])}" if around else None


def _around(events: Events, thread: int, moment_ns: int) -> list[int]:
    """Events of a thread that were open at a moment, outermost first."""
    upto = int(np.searchsorted(events.start, moment_ns, side="right"))
    found = np.flatnonzero((events.end[:upto] > moment_ns) & (events.track[:upto] == thread))
    order: list[int] = found[np.lexsort((-events.end[found], events.start[found]))].tolist()
    return order


class KernelSources:
    """From a kernel's name to its source and its bytes of input, by a trace without graphs."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self._sources, self._launched = trace, Sources(trace), launches(trace)
        self._known: dict[str, str | None] = {}
        self._numbers = {trace.names[n]: int(n) for n in np.unique(trace.device.name)}

    def find(self, kernel: str) -> str | None:
        if kernel not in self._known:
            number = self._numbers.get(kernel)
            self._known[kernel] = None if number is None else self._ask(number)
        return self._known[kernel]

    def _ask(self, number: int) -> str | None:
        events = np.flatnonzero(self.trace.device.name == number)
        picks = events[np.linspace(0, len(events) - 1, min(_LOOKUPS, len(events))).astype(int)]
        answers = Counter(self._sources.of_device(self._launched, int(e)) for e in picks)
        answers.pop(None, None)
        if not answers:
            return None
        found = answers.most_common(1)[0][0]
        return found if len(answers) == 1 else f"{found} and elsewhere"

    def bytes_of(self, kernel: str) -> float | None:
        """Mean bytes of input of the operators that launch it; None if shapes were not recorded."""
        number = self._numbers.get(kernel)
        return None if number is None else input_bytes(self.trace, np.flatnonzero(self.trace.device.name == number))


def input_bytes(trace: Trace, events: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float | None:
    """Mean bytes of input for events on the device, by their operator; None if that is not known."""
    known = np.flatnonzero((trace.ops.size > 0) & (trace.ops.external != 0))
    if not len(known):
        return None
    order = known[np.argsort(trace.ops.external[known], kind="stable")]
    keys, wanted = trace.ops.external[order], trace.device.external[events]
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    hit = (keys[place] == wanted) & (wanted != 0)
    return float(trace.ops.size[order[place[hit]]].mean()) if hit.any() else None
