"""How rules turn events into a finding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sonant.profiling.analysis import Analysis
from sonant.profiling.events import Ints
from sonant.profiling.finding import Evidence, Finding
from sonant.profiling.gaps import busy_union
from sonant.profiling.kernels import short

_EVIDENCE = 6
_MARKS = 2000


def finding(
    analysis: Analysis,
    rule: str,
    title: str,
    *,
    lost_ns: float,
    count: float,
    fix: str,
    evidence: Sequence[Evidence] = (),
    source: str | None = None,
    marks: Sequence[tuple[int, int]] = (),
    at_most: bool = False,
) -> Finding:
    """A finding from `lost_ns` and `count`, which are totals over all steady steps."""
    lost_us = lost_ns / analysis.count / 1e3
    source = source or next((e.source for e in evidence if e.source), None)
    return Finding(
        rule=rule,
        title=title,
        lost_us=lost_us,
        share=1e3 * lost_us / analysis.step_ns,
        count=count / analysis.count,
        source=source,
        fix=fix,
        evidence=tuple(evidence[:_EVIDENCE]),
        at_most=at_most,
        marks=tuple(marks[:_MARKS]),
    )


def of_events(analysis: Analysis, rule: str, title: str, events: Ints, lost_ns: Ints, fix: str) -> Finding:
    """A finding whose evidence is the device's events themselves, each with the time that it loses."""
    return finding(
        analysis,
        rule,
        title,
        lost_ns=float(lost_ns.sum()),
        count=len(events),
        evidence=by_kernel(analysis, events, lost_ns),
        marks=spans(analysis, events),
        fix=fix,
    )


def by_kernel(analysis: Analysis, events: Ints, lost_ns: Ints) -> list[Evidence]:
    """The kernels of `events`, the most expensive first, with the source of their launches."""
    device = analysis.trace.device
    rows = []
    for number in np.unique(device.name[events]):
        mine = device.name[events] == number
        us = float(lost_ns[mine].sum()) / analysis.count / 1e3
        rows.append((us, float(mine.sum()) / analysis.count, int(number), events[mine]))
    rows.sort(key=lambda row: (-row[0], -row[1]))
    return [
        Evidence(_described(analysis, number, mine), count, us, analysis.source_of(mine.tolist()))
        for us, count, number, mine in rows[:_EVIDENCE]
    ]


def _described(analysis: Analysis, number: int, events: Ints) -> str:
    size = float(analysis.trace.device.size[events].mean())
    text = short(analysis.trace.names[number])
    return f"{text}, {amount(size)} each" if size else text


def amount(size: float) -> str:
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.0f} bytes"


def spans(analysis: Analysis, events: Ints) -> list[tuple[int, int]]:
    device = analysis.trace.device
    return list(zip(device.start[events].tolist(), device.end[events].tolist(), strict=True))


def alone_ns(analysis: Analysis, events: Ints) -> Ints:
    """How long each of these events ran with no other work on the device."""
    device = analysis.trace.device
    other = np.ones(len(device), bool)
    other[events] = False
    if not other.any():
        return device.duration[events]
    starts, ends = busy_union(device.start[other], device.end[other])
    covered = np.append(0, np.cumsum(ends - starts))

    def busy_before(moment: Ints) -> Ints:
        place = np.searchsorted(starts, moment, side="right")
        over = np.where(place > 0, np.maximum(0, ends[np.maximum(place - 1, 0)] - moment), 0)
        result: Ints = covered[place] - over
        return result

    return device.duration[events] - (busy_before(device.end[events]) - busy_before(device.start[events]))
