"""Finds where steps begin: the moments at which the host starts to launch each of them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np

from sonant.profiling.events import Ints, Trace, TraceError
from sonant.profiling.launches import GRAPH_LAUNCH, Launches, named

LEAST_STEPS = 4
_LEAST_PERIOD = 4  # the fewest events on the device that a step is made of
# Ranges that engines put around a step, the most reliable first.
_KNOWN = (
    re.compile(r"^sonant\.step\b"),
    re.compile(r"^(execute_context_\d+|execute_new_\d+)"),  # vLLM
    re.compile(r"^step\[|^(run_batch|forward_(decode|extend))\b"),  # SGLang
    re.compile(r"^ProfilerStep#\d+"),
    re.compile(r"^(step|decode|frame|generate_step|decode_step)\b", re.IGNORECASE),
)
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class StepStarts:
    """How steps were told apart, and when the host began each."""

    how: str
    start: Ints
    end: Ints | None  # when each range ends; None if steps were found by other means
    labels: tuple[str, ...]
    thread: int | None
    tells_prefill: bool  # whether the labels say which steps are prefill
    cut: bool = False  # whether the trace may end in the middle of the last step


def detect_steps(trace: Trace, launched: Launches, step_name: str | None) -> StepStarts | None:
    if step_name is not None:
        found = _by_range(trace, re.compile(re.escape(step_name)), least=1)
        if found is None:
            known = ", ".join(sorted({_DIGITS.sub("#", trace.names[n]) for n in np.unique(trace.ranges.name)})[:20])
            raise TraceError(f"no range is called {step_name!r} in this trace; there are: {known or 'none at all'}")
        return found
    for pattern in _KNOWN:
        found = _by_range(trace, pattern, LEAST_STEPS)
        if found is not None and _launches(found.thread, launched):
            return found
    return _by_graph(trace, launched) or _by_sequence(trace, launched)


def _by_range(trace: Trace, pattern: re.Pattern[str], least: int) -> StepStarts | None:
    ranges = trace.ranges
    mine = np.flatnonzero(named(ranges, trace.names, pattern))
    if len(mine) < least:
        return None
    thread = int(Counter(ranges.track[mine].tolist()).most_common(1)[0][0])
    mine = mine[ranges.track[mine] == thread]
    outer = mine[np.append(True, ranges.start[mine[1:]] >= np.maximum.accumulate(ranges.end[mine])[:-1])]
    labels = tuple(trace.name_of(ranges, i) for i in outer)
    tells_prefill = any(word in labels[0] for word in ("prefill=", "execute_context_", "step["))
    how = f"range {_DIGITS.sub('#', labels[0])}"
    return StepStarts(how, ranges.start[outer], ranges.end[outer], labels, thread, tells_prefill)


def _launches(thread: int | None, launched: Launches) -> bool:
    """Whether the thread launches work on the device, as far as that is known."""
    known = launched.thread[launched.thread >= 0]
    return not len(known) or bool((known == thread).any())


def _by_graph(trace: Trace, launched: Launches) -> StepStarts | None:
    """Steps that each begin with the graph that takes the most time. Graphs are told apart by their kernels."""
    runtime, device = trace.runtime, trace.device
    calls = np.flatnonzero(named(runtime, trace.names, GRAPH_LAUNCH))
    if len(calls) < LEAST_STEPS:
        return None
    is_graph = np.zeros(len(runtime) + 1, bool)
    is_graph[calls] = True
    mine = np.flatnonzero(is_graph[launched.call])
    kernels: dict[int, list[int]] = defaultdict(list)
    for event in mine.tolist():
        kernels[int(launched.call[event])].append(event)
    shape_of = {call: tuple(sorted(set(device.name[events].tolist()))) for call, events in kernels.items()}
    time: Counter[tuple[int, ...]] = Counter()
    for call, events in kernels.items():
        time[shape_of[call]] += int(device.duration[events].sum())
    if not time:
        return None
    counts = Counter(shape_of.values())
    # If a step has several graphs (one a layer, the codec's beside the frame's), the one with most time begins it.
    best = max(counts, key=lambda shape: time[shape] if counts[shape] >= LEAST_STEPS else -1)
    if counts[best] < LEAST_STEPS:
        return None
    chosen = sorted(call for call, shape in shape_of.items() if _alike(shape, best))
    thread = int(Counter(runtime.track[chosen].tolist()).most_common(1)[0][0])
    chosen = [call for call in chosen if runtime.track[call] == thread]
    if len(chosen) < LEAST_STEPS or _many_a_step(len(chosen), trace, launched):
        return None
    return StepStarts(
        "graph launches", runtime.start[chosen], None, ("graph",) * len(chosen), thread, tells_prefill=False
    )


def _alike(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """The same step at another batch size has mostly the same kernels."""
    a, b = set(one), set(other)
    return len(a & b) >= 0.5 * len(a | b)


def _many_a_step(graphs: int, trace: Trace, launched: Launches) -> bool:
    """Whether graphs are piecewise, several a step: other work then comes regularly after every few similar ones."""
    found = _by_sequence(trace, launched)
    return found is not None and len(found.start) * 2 <= graphs


def _by_sequence(trace: Trace, launched: Launches) -> StepStarts | None:
    """Steps by the longest period at which several kernels recur evenly, counted in events on the device.

    A layer's kernels recur evenly too, but more often; those that run once a step (the head, sampling) have the longest
    period. One stray kernel with a longer period, a copy every sixteen steps, is no step: several must share it, or
    that one must take 2 % of the time.
    """
    device = trace.device
    total = int(device.duration.sum())
    where: dict[int, Ints] = {int(n): np.flatnonzero(device.name == n) for n in np.unique(device.name)}
    even = {n: at for n, at in where.items() if len(at) >= LEAST_STEPS and _evenly(at)}
    groups: dict[int, list[int]] = defaultdict(list)
    for n in sorted(even, key=lambda n: len(even[n])):
        size = len(even[n])
        near = next((g for g in groups if abs(g - size) <= max(1, 0.03 * g)), size)
        groups[near].append(n)
    for _, members in sorted(groups.items()):
        time = sum(int(device.duration[even[n]].sum()) for n in members)
        if len(members) >= 2 or time >= 0.02 * total:
            at = min((even[n] for n in members), key=lambda at: int(at[0]))
            start = np.sort(launched.start[at])
            threads = launched.thread[at]
            thread = int(threads[0]) if threads[0] >= 0 and (threads == threads[0]).all() else None
            return StepStarts(
                "repeating kernels", start, None, ("step",) * len(at), thread, tells_prefill=False, cut=True
            )
    return None


def _evenly(at: Ints) -> bool:
    gaps = np.diff(at)
    typical = np.median(gaps)
    if typical < _LEAST_PERIOD:
        return False  # a run of the same kernel
    return bool((np.abs(gaps - typical) <= max(1.0, 0.1 * typical)).mean() >= 0.7)
