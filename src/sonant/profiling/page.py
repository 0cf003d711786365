"""A report as one self-contained HTML file: kernels, a timeline to zoom in, findings with their evidence."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from sonant.profiling.analysis import Analysis
from sonant.profiling.kernels import ORDER, short
from sonant.profiling.perfetto import stretch
from sonant.profiling.report import ProfileReport

_TIMELINE_STEPS = 6
_MOST_SPANS = 60_000
_MARKS = 3000


def write_page(analysis: Analysis, report: ProfileReport, path: Path) -> None:
    template = files("sonant.profiling").joinpath("page.html").read_text(encoding="utf-8")
    data = {"report": report.to_json(), "timeline": timeline(analysis, report)}
    # "</" would end the script element that contains the data, even inside quotes.
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":")).replace("</", "<\\/")
    path.write_text(template.replace("__DATA__", text), encoding="utf-8")


def timeline(analysis: Analysis, report: ProfileReport) -> dict[str, Any]:
    """Spans of a few steady steps in microseconds from their beginning, by stream, and where findings lie."""
    begin, end = stretch(analysis, _TIMELINE_STEPS)
    trace, device = analysis.trace, analysis.trace.device
    shown = np.flatnonzero((device.end > begin) & (device.start < end))[:_MOST_SPANS]
    names = np.unique(device.name[shown])
    number = {int(n): i for i, n in enumerate(names)}
    lanes = []
    for track in np.unique(device.track[shown]):
        mine = shown[device.track[shown] == track]
        spans = [
            [_us(device.start[i] - begin), _us(device.end[i] - device.start[i]), number[int(device.name[i])],
             int(analysis.works.code[i])]
            for i in mine
        ]  # fmt: skip
        lanes.append({"name": f"{'thread' if trace.stand_in else 'stream'} {track}", "spans": spans})
    calls = np.flatnonzero((trace.runtime.end > begin) & (trace.runtime.start < end))[:_MOST_SPANS]
    call_names = sorted({trace.name_of(trace.runtime, i) for i in calls})
    offset = {name: len(names) + i for i, name in enumerate(call_names)}
    host = [
        [_us(trace.runtime.start[i] - begin), _us(trace.runtime.end[i] - trace.runtime.start[i]),
         offset[trace.name_of(trace.runtime, i)], -1]
        for i in calls
    ]  # fmt: skip
    marks = [
        {"rule": f.rule, "spans": [[_us(a - begin), _us(b - a)] for a, b in f.marks if begin <= a < end][:_MARKS]}
        for f in report.findings
    ]
    steps = [
        {"at": _us(analysis.steps.start[i] - begin), "us": _us(analysis.steps.end[i] - analysis.steps.start[i]),
         "label": f"{analysis.steps.kinds[i]}: {analysis.steps.labels[i]}"}
        for i in np.flatnonzero((analysis.steps.end > begin) & (analysis.steps.start < end)).tolist()
    ]  # fmt: skip
    return {
        "length": _us(end - begin),
        "names": [short(trace.names[n], 120) for n in names] + call_names,
        "works": [str(work) for work in ORDER],
        "lanes": [*lanes, *([{"name": "CUDA calls", "spans": host}] if host else [])],
        "marks": [mark for mark in marks if mark["spans"]],
        "steps": steps,
    }


def _us(ns: Any) -> float:
    return round(float(ns) / 1e3, 3)
