"""Time that the device waits for the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from sonant.profiling.analysis import Analysis
from sonant.profiling.events import Ints
from sonant.profiling.finding import Evidence, Finding
from sonant.profiling.gaps import Cause
from sonant.profiling.launches import ALLOCATION, PREPARATION, named
from sonant.profiling.rules.builders import amount, finding

_LOOKUPS = 200


def launch_bound(analysis: Analysis) -> Iterator[Finding]:
    gaps = analysis.steady_gaps(Cause.LAUNCH)
    if len(gaps):
        where = "operators on the CPU are apart" if analysis.trace.stand_in else "the device waits for launches"
        yield finding(
            analysis,
            "launch_bound",
            f"{where}: the host cannot keep up",
            lost_ns=float(analysis.gaps.duration[gaps].sum()),
            count=len(gaps),
            evidence=sizes(analysis, gaps),
            source=_common_source(analysis, gaps),
            marks=_spans(analysis, gaps),
            fix="replay the step as one CUDA graph; failing that, fewer and larger kernels, less Python between them",
        )


def pauses(analysis: Analysis) -> Iterator[Finding]:
    """Hot spots of the step thread: what it was doing while it made no call and the device was idle."""
    gaps = analysis.steady_gaps(Cause.PAUSE)
    if not len(gaps):
        return
    gaps = gaps[np.argsort(-analysis.gaps.duration[gaps], kind="stable")]
    time: Counter[str | None] = Counter()
    count: Counter[str | None] = Counter()
    for gap in gaps[:_LOOKUPS].tolist():
        where = _frame(analysis, gap)
        time[where] += int(analysis.gaps.duration[gap])
        count[where] += 1
    evidence = [
        Evidence(where or "no Python stack in this trace: record with with_stack=True", count[where] / analysis.count,
                 ns / analysis.count / 1e3, where)
        for where, ns in time.most_common(6)
    ]  # fmt: skip
    some = f"; told are the {_LOOKUPS} longest" if len(gaps) > _LOOKUPS else ""
    yield finding(
        analysis,
        "pauses",
        f"the step thread does something else and the device runs dry{some}",
        lost_ns=float(analysis.gaps.duration[gaps].sum()),
        count=len(gaps),
        evidence=evidence,
        marks=_spans(analysis, gaps),
        fix="move it off the step thread or after the launch of the next step; if nothing is named, look for the "
        "garbage collector, a lock, or other threads that hold the GIL",
    )


def allocations(analysis: Analysis) -> Iterator[Finding]:
    runtime, memory = analysis.trace.runtime, analysis.trace.memory
    calls = analysis.steady_calls(named(runtime, analysis.trace.names, ALLOCATION))
    given = analysis.steady_allocations()
    if not len(calls) and not len(given):
        return
    gaps = analysis.steady_gaps(Cause.ALLOCATION)
    evidence = [
        Evidence(name, count / analysis.count, float(runtime.duration[calls][mine].sum()) / analysis.count / 1e3,
                 analysis.sources.at(int(runtime.track[at]), int(runtime.start[at])))
        for name, count, mine, at in _grouped(analysis, calls)
    ]  # fmt: skip
    if len(given):
        size, at = float(memory.size[given].mean()), int(given[np.argmax(memory.size[given])])
        where = analysis.sources.at(int(memory.track[at]), int(memory.start[at]))
        evidence.append(
            Evidence(f"the caching allocator, {amount(size)} each", len(given) / analysis.count, 0.0, where)
        )
    yield finding(
        analysis,
        "allocations",
        "memory is asked from the driver in every step" if len(calls) else "every step allocates from the cache",
        lost_ns=float(analysis.gaps.duration[gaps].sum()),
        count=len(calls) + len(given),
        evidence=evidence,
        marks=[(int(runtime.start[c]), int(runtime.end[c])) for c in calls],
        fix="allocate buffers once and reuse them; a CUDA graph does it by itself; pinned memory above all is dear",
    )


def preparation(analysis: Analysis) -> Iterator[Finding]:
    runtime = analysis.trace.runtime
    calls = analysis.steady_calls(named(runtime, analysis.trace.names, PREPARATION))
    if not len(calls):
        return
    gaps = analysis.steady_gaps(Cause.PREPARATION)
    yield finding(
        analysis,
        "preparation",
        "graphs are captured, or code is compiled and loaded, in the steady state",
        lost_ns=float(analysis.gaps.duration[gaps].sum()),
        count=len(calls),
        evidence=[
            Evidence(name, count / analysis.count, float(runtime.duration[calls][mine].sum()) / analysis.count / 1e3,
                     analysis.sources.at(int(runtime.track[at]), int(runtime.start[at])))
            for name, count, mine, at in _grouped(analysis, calls)
        ],
        marks=[(int(runtime.start[c]), int(runtime.end[c])) for c in calls],
        fix="capture every batch size and compile every shape at start; pass what varies as data and not as a constant",
    )  # fmt: skip


def sizes(analysis: Analysis, gaps: Ints) -> list[Evidence]:
    """How many gaps there are of each length."""
    length = analysis.gaps.duration[gaps]
    bounds = (
        (0, 1, "under 1 µs"),
        (1, 3, "1 to 3 µs"),
        (3, 10, "3 to 10 µs"),
        (10, 100, "10 to 100 µs"),
        (100, 1e12, "longer"),
    )
    rows = []
    for low, high, text in bounds:
        mine = (length >= 1e3 * low) & (length < 1e3 * high)
        if mine.any():
            rows.append(
                Evidence(
                    f"gaps {text}", float(mine.sum()) / analysis.count, float(length[mine].sum()) / analysis.count / 1e3
                )
            )
    return sorted(rows, key=lambda e: -e.us)


def _grouped(analysis: Analysis, calls: Ints) -> list[tuple[str, int, Ints, int]]:
    """Calls by name. A row has the name, its count, which of the calls they are, and the longest of them."""
    runtime = analysis.trace.runtime
    rows = []
    for number in np.unique(runtime.name[calls]):
        mine = np.flatnonzero(runtime.name[calls] == number)
        longest = int(calls[mine[np.argmax(runtime.duration[calls[mine]])]])
        rows.append((analysis.trace.names[number], len(mine), mine, longest))
    return sorted(rows, key=lambda row: -int(runtime.duration[calls[row[2]]].sum()))


def _thread(analysis: Analysis) -> int | None:
    if analysis.steps.thread is not None:
        return analysis.steps.thread
    threads = analysis.launched.thread[analysis.launched.thread >= 0]
    return int(Counter(threads.tolist()).most_common(1)[0][0]) if len(threads) else None


def _frame(analysis: Analysis, gap: int) -> str | None:
    """What Python was doing during a gap; without its stack, the source of the device's next work."""
    thread = _thread(analysis)
    if thread is None:
        return None
    middle = int(analysis.gaps.start[gap] + analysis.gaps.end[gap]) // 2
    inner, mine = analysis.sources.frame_at(thread, middle), analysis.sources.line_at(thread, middle)
    if inner is None:
        following = int(np.searchsorted(analysis.trace.device.start, analysis.gaps.end[gap]))
        source = analysis.source_of([following]) if following < len(analysis.trace.device) else None
        return None if source is None else f"before {source}"
    return inner if mine in (None, inner) else f"{inner} in {mine}"


def _common_source(analysis: Analysis, gaps: Ints) -> str | None:
    longest = gaps[np.argsort(-analysis.gaps.duration[gaps], kind="stable")][:20]
    thread = _thread(analysis)
    if thread is None:
        return None
    found = Counter(analysis.sources.line_at(thread, int(analysis.gaps.end[g])) for g in longest.tolist())
    found.pop(None, None)
    return found.most_common(1)[0][0] if found else None


def _spans(analysis: Analysis, gaps: Ints) -> list[tuple[int, int]]:
    return list(zip(analysis.gaps.start[gaps].tolist(), analysis.gaps.end[gaps].tolist(), strict=True))
