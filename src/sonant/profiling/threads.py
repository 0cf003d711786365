"""Unifies threads that appear in a trace under two numbers.

CUPTI knows a thread by another number than torch does. Kineto translates, but not every thread in every version, and
then the calls of the step thread would seem to be another thread's.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sonant.profiling.events import Events, Trace

_SAMPLES = 200
_SHARE = 0.4  # of an unknown thread's calls that must lie in a known one's events, and twice as many as in any other's


def unify(trace: Trace) -> Trace:
    """The trace with calls of unknown threads assigned to the thread in whose operators and ranges they lie."""
    runtime = trace.runtime
    known = np.unique(np.concatenate([events.track for events in (trace.ops, trace.ranges, trace.python)]))
    track = runtime.track.copy()
    for stranger in np.setdiff1d(np.unique(runtime.track), known):
        mine = np.flatnonzero(runtime.track == stranger)
        picks = mine[np.linspace(0, len(mine) - 1, min(_SAMPLES, len(mine))).astype(int)]
        moments = runtime.start[picks]
        shares = sorted(
            (float((_inside(trace.ranges, t, moments) | _inside(trace.ops, t, moments)).mean()), int(t)) for t in known
        )
        best, second = [(0.0, 0), (0.0, 0), *shares][-1:-3:-1]
        if best[0] >= max(_SHARE, 2 * second[0]):
            track[mine] = best[1]
    return replace(trace, runtime=replace(runtime, track=track))


def _inside(
    events: Events, thread: int, moments: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether some event of the thread was open at each moment."""
    mine = np.flatnonzero(events.track == thread)
    if not len(mine):
        return np.zeros(len(moments), bool)
    reach = np.maximum.accumulate(events.end[mine])
    place = np.searchsorted(events.start[mine], moments, side="right") - 1
    return (place >= 0) & (reach[np.maximum(place, 0)] > moments)
