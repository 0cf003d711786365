"""Writes the trace with findings on tracks of their own, for ui.perfetto.dev and chrome://tracing.

Only the part around the first steady steps is written: viewers cannot handle what a profiler writes in a minute.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sonant.profiling.analysis import Analysis
from sonant.profiling.events import Events
from sonant.profiling.finding import Finding

STEPS = 12
_HOST, _DEVICE, _FINDINGS, _STEPS = 1, 2, 3, 4
_MOST_EVENTS = 400_000


def write_perfetto(analysis: Analysis, findings: list[Finding], path: Path) -> None:
    with gzip.open(path, "wt", encoding="utf-8") if path.suffix == ".gz" else path.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        for number, event in enumerate(_events(analysis, findings)):
            file.write((",\n" if number else "") + json.dumps(event))
        file.write("\n]}\n")


def stretch(analysis: Analysis, steps: int = STEPS) -> tuple[int, int]:
    """The time from the launch of the first steady step to the end of a few more."""
    chosen = analysis.steps.steady[:steps]
    inside = np.isin(analysis.steps.of_event, chosen)
    first = min(int(analysis.launched.start[inside].min()), int(analysis.steps.start[chosen[0]]))
    return first, int(analysis.steps.end[chosen[-1]])


def _events(analysis: Analysis, findings: list[Finding]) -> Iterator[dict[str, Any]]:
    begin, end = stretch(analysis)
    trace = analysis.trace
    for pid, name in ((_FINDINGS, "findings"), (_STEPS, "steps"), (_DEVICE, "device"), (_HOST, "host")):
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid % 4}}
    for step in np.flatnonzero((analysis.steps.end > begin) & (analysis.steps.start < end)).tolist():
        start, stop = int(analysis.steps.start[step]), int(analysis.steps.end[step])
        label = f"{analysis.steps.kinds[step]} {analysis.steps.labels[step]}"
        yield _span(label, start - begin, stop - start, _STEPS, 0, {"step": step})
    for tid, found in enumerate(findings):
        yield {"ph": "M", "name": "thread_name", "pid": _FINDINGS, "tid": tid, "args": {"name": found.rule}}
        args = {"fix": found.fix, "source": found.source or "", "us_a_step": round(found.lost_us, 1)}
        for start, stop in found.marks:
            if begin <= start < end:
                yield _span(found.title, start - begin, stop - start, _FINDINGS, tid, args)
    for pid, events in (
        (_DEVICE, trace.device),
        (_HOST, trace.runtime),
        (_HOST, trace.ranges),
        (_HOST, trace.ops),
        (_HOST, trace.python),
    ):
        if not (trace.stand_in and events is trace.ops):
            yield from _copied(analysis, events, pid, begin, end)


def _copied(analysis: Analysis, events: Events, pid: int, begin: int, end: int) -> Iterator[dict[str, Any]]:
    for i in np.flatnonzero((events.end > begin) & (events.start < end))[:_MOST_EVENTS].tolist():
        args = {"correlation": int(events.correlation[i])} if events.correlation[i] else {}
        start = int(events.start[i])
        yield _span(
            analysis.trace.name_of(events, i),
            start - begin,
            int(events.end[i]) - start,
            pid,
            int(events.track[i]),
            args,
        )


def _span(name: str, start: int, length: int, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "X", "name": name, "ts": start / 1e3, "dur": length / 1e3, "pid": pid, "tid": tid, "args": args}
