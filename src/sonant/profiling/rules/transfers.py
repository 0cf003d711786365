"""Traffic between host and device, and waits of the host that let the device run dry."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from sonant.profiling.analysis import Analysis
from sonant.profiling.finding import Evidence, Finding
from sonant.profiling.gaps import Cause
from sonant.profiling.kernels import Work
from sonant.profiling.launches import SYNC, named
from sonant.profiling.rules.builders import alone_ns, finding, of_events

PAGEABLE = re.compile(r"Memcpy .*Pageable")
_WEIGHT_WAIT = re.compile(r"^_weights_wanted$"), re.compile(r"^_weights_there$")


def to_host(analysis: Analysis) -> Iterator[Finding]:
    """Copies to pinned memory; those to pageable memory belong to `pageable`."""
    events = analysis.steady(Work.TO_HOST)
    events = events[~named(analysis.trace.device, analysis.trace.names, PAGEABLE)[events]]
    if len(events):
        lost = alone_ns(analysis, events)
        yield of_events(
            analysis,
            "to_host",
            "results are copied to the host while the device does nothing else",
            events,
            lost,
            "gather what the host needs into one pinned buffer, copied on a stream of its own beside the next step",
        )


def pageable(analysis: Analysis) -> Iterator[Finding]:
    events = analysis.steady(Work.TO_HOST, Work.TO_DEVICE)
    events = events[named(analysis.trace.device, analysis.trace.names, PAGEABLE)[events]]
    if len(events):
        lost = alone_ns(analysis, events)
        yield of_events(
            analysis,
            "pageable",
            "copies from or to pageable memory: the driver stages them, and the host waits",
            events,
            lost,
            "pin the host's buffer once and copy with non_blocking=True; keep there what only the device reads",
        )


def weight_waits(analysis: Analysis) -> Iterator[Finding]:
    """Waits for weights that come over the bus. A step marks each by a kernel before it and one after it."""
    device, names, events = analysis.trace.device, analysis.trace.names, analysis.steady()
    events = events[np.argsort(device.start[events], kind="stable")]
    wanted, there = (events[named(device, names, pattern)[events]] for pattern in _WEIGHT_WAIT)
    after = np.searchsorted(device.start[there], device.start[wanted], side="right")
    paired = after < len(there)
    begun, ended = device.end[wanted[paired]], device.start[there[after[paired]]]
    lost = np.maximum(0, ended - begun)
    if lost.sum():
        waits = f"waits, the longest of {lost.max() / 1e3:,.0f} µs"
        yield finding(
            analysis,
            "weight_waits",
            "the device waits for weights that come from host memory",
            lost_ns=float(lost.sum()),
            count=len(lost),
            evidence=[Evidence(waits, len(lost) / analysis.count, float(lost.sum()) / 1e3 / analysis.count)],
            marks=list(zip(begun.tolist(), ended.tolist(), strict=True)),
            fix="raise gpu_weights, so that fewer of them come; a smaller KV cache (kv_tokens) makes room for them, "
            "and more rows in a step share the same copies",
        )


def syncs(analysis: Analysis) -> Iterator[Finding]:
    gaps = analysis.steady_gaps(Cause.SYNC)
    if not len(gaps):
        return
    runtime, trace = analysis.trace.runtime, analysis.trace
    call, length = analysis.gaps.call[gaps], analysis.gaps.duration[gaps]
    blamed = np.unique(call)
    rows: Counter[tuple[str, str | None]] = Counter()
    counts: Counter[tuple[str, str | None]] = Counter()
    for index in blamed[:400].tolist():  # enough to find the sources, as a lookup costs milliseconds in a large trace
        key = (trace.name_of(runtime, index), analysis.sources.at(int(runtime.track[index]), int(runtime.start[index])))
        rows[key] += int(length[call == index].sum())
        counts[key] += 1
    scale = len(blamed) / min(len(blamed), 400) / analysis.count
    evidence = [
        Evidence(name, counts[key] * scale, ns * scale / 1e3, where)
        for key, ns in rows.most_common(6)
        for name, where in [key]
    ]
    every = len(analysis.steady_calls(named(runtime, trace.names, SYNC)))
    harmless = (every - len(blamed)) / analysis.count
    note = f"; {harmless:.3g} other waits a step left the device enough to do" if harmless > 0.01 else ""
    yield finding(
        analysis,
        "syncs",
        f"the host waits until the device has run dry{note}",
        lost_ns=float(length.sum()),
        count=len(blamed),
        evidence=evidence,
        marks=list(zip(analysis.gaps.start[gaps].tolist(), analysis.gaps.end[gaps].tolist(), strict=True)),
        fix="keep the decision on the device (no .item(), .cpu(), nonzero, boolean mask); read results a step late, "
        "after the next step was launched",
    )
