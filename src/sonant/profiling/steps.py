"""Cuts a trace into steps and finds the kind of each.

A step is found, in this order: by a range that the engine names (ours, vLLM's, SGLang's, ProfilerStep, or `--step`), by
the graph launch that repeats, by the sequence of kernels that repeats. Everything before the first step is start-up, so
that a cache filled once is never mistaken for the cost of a step.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from sonant.profiling.events import Events, Ints, Trace
from sonant.profiling.kernels import Work, Works
from sonant.profiling.launches import PREPARATION, Launches, named
from sonant.profiling.step_detection import StepStarts, detect_steps

_PREFILL = re.compile(r"prefill=[1-9]|PREFILL|EXTEND|execute_context_[1-9]")
_NO_DECODE = re.compile(r"\brows=0\b")
_ROWS = re.compile(r"\brows=(\d+) bucket=(\d+)")
_NO_WORK_NS = 50_000_000  # a pause this long, and ten steps long, is a wait for requests
_FOREIGN = 0.3  # a kernel in fewer steps than this share does not belong to the steady step


class StepKind(StrEnum):
    STARTUP = "start-up"
    WARMUP = "warm-up"
    PREFILL = "prefill"
    DECODE = "decode"
    OTHER = "other"  # steps that decode nothing, a last step that may be cut, and a trace without steps
    BESIDE = "beside"  # launched by other threads while steps ran, or after the last step


@dataclass(frozen=True)
class Steps:
    how: str
    labels: tuple[str, ...]
    kinds: tuple[StepKind, ...]
    start: Ints  # when a step's first work on the device begins
    end: Ints  # when the next step's work begins, or its own last work ends
    of_event: Ints  # the step of each event on the device; -1 if it belongs to none
    thread: int | None  # the step thread; None if it is not known
    remarks: tuple[str, ...] = ()

    def indices(self, kind: StepKind) -> Ints:
        return np.array([i for i, k in enumerate(self.kinds) if k is kind], np.int64)

    @property
    def steady(self) -> Ints:
        """Decode steps; if there are none, all that are not warm-up."""
        found = self.indices(StepKind.DECODE)
        if len(found):
            return found
        return np.array([i for i, kind in enumerate(self.kinds) if kind is not StepKind.WARMUP], np.int64)

    def rows(self, step: int) -> tuple[int, int] | None:
        """Live rows and the size that they were padded to, if the engine recorded them."""
        found = _ROWS.search(self.labels[step])
        return (int(found[1]), int(found[2])) if found else None

    def kind_of_events(self, device: Events) -> list[StepKind]:
        if not len(self.start):
            return [StepKind.OTHER] * len(device)
        first = int(self.start[0])
        outside = [StepKind.STARTUP if s < first else StepKind.BESIDE for s in device.start.tolist()]
        return [self.kinds[s] if s >= 0 else o for s, o in zip(self.of_event.tolist(), outside, strict=True)]


def segment(trace: Trace, launched: Launches, step_name: str | None = None) -> Steps:
    starts = detect_steps(trace, launched, step_name)
    if starts is None:
        return _one_step(trace)
    of_event = np.searchsorted(starts.start, launched.start, side="right") - 1
    if starts.thread is not None:
        of_event[(launched.thread != starts.thread) & (launched.thread != -1)] = -1
    if starts.end is not None:  # work launched after the last range belongs to no step
        of_event[(of_event == len(starts.start) - 1) & (launched.start > starts.end[-1])] = -1
    if not (of_event >= 0).any():
        return _one_step(trace)
    return _steps(trace, starts, of_event)


def _one_step(trace: Trace) -> Steps:
    device = trace.device
    remark = "no steps were found: the whole trace is taken as one; name its range with --step"
    return Steps(
        how="none",
        labels=("trace",),
        kinds=(StepKind.OTHER,),
        start=device.start[:1],
        end=np.array([device.end.max()]),
        of_event=np.zeros(len(device), np.int64),
        thread=None,
        remarks=(remark,),
    )


def _steps(trace: Trace, starts: StepStarts, of_event: Ints) -> Steps:
    device, count = trace.device, len(starts.start)
    inside = of_event >= 0
    start, last = np.full(count, np.iinfo(np.int64).max), np.zeros(count, np.int64)
    np.minimum.at(start, of_event[inside], device.start[inside])
    np.maximum.at(last, of_event[inside], device.end[inside])
    used = np.flatnonzero(last > 0)  # a start without work on the device is no step
    renumber = np.full(count + 1, -1)
    renumber[used] = np.arange(len(used))
    of_event = renumber[of_event]  # -1 goes to the last place, which is -1 too
    start, last = start[used], last[used]
    start = np.maximum.accumulate(start)
    end = np.append(start[1:], last[-1])
    remarks = []
    pause = np.maximum(_NO_WORK_NS, 10 * np.median(end - start))
    waits = (end - last) > pause
    if waits.any():
        end[waits] = last[waits]
        remarks.append(f"{int(waits.sum())} waits for requests between steps were left out")
    labels = tuple(starts.labels[i] for i in used)
    kinds = _kinds(trace, labels, end - start, starts.start[used])
    if not starts.tells_prefill:
        for step in _foreign(trace, of_event, len(labels)):
            kinds[step] = StepKind.PREFILL
    if starts.cut:
        kinds[-1] = StepKind.OTHER
    return Steps(starts.how, labels, tuple(kinds), start, end, of_event, starts.thread, tuple(remarks))


def _kinds(trace: Trace, labels: tuple[str, ...], window: Ints, launch: Ints) -> list[StepKind]:
    """The kind of each step. `launch` is when the host began it, and `window` how long it took."""
    kinds = [
        StepKind.PREFILL if _PREFILL.search(label) else StepKind.OTHER if _NO_DECODE.search(label) else StepKind.DECODE
        for label in labels
    ]
    typical = float(np.median(window))
    preparing = trace.runtime.start[named(trace.runtime, trace.names, PREPARATION)]
    busy = set((np.searchsorted(launch, preparing, side="right") - 1).tolist())
    for step in range(len(labels) // 4):  # only at the beginning: later it is not warm-up, but a cost
        slow = kinds[step] is StepKind.DECODE and window[step] > 2 * typical
        if step in busy or slow:
            kinds[step] = StepKind.WARMUP
        elif kinds[step] is StepKind.DECODE:
            break
    return kinds


def _foreign(trace: Trace, of_event: Ints, count: int) -> list[int]:
    """Steps in which over a quarter of the time goes to products and attention that most steps do not have."""
    device = trace.device
    inside = np.flatnonzero(of_event >= 0)
    seen = Counter(name for _, name in set(zip(of_event[inside].tolist(), device.name[inside].tolist(), strict=True)))
    rare = np.array([name for name, steps in seen.items() if steps < _FOREIGN * count], np.int64)
    works = Works(device, trace.names)
    heavy = np.isin(device.name, rare) & works.among((Work.GEMM, Work.ATTENTION)) & (of_event >= 0)
    time, foreign = np.zeros(count), np.zeros(count)
    np.add.at(time, of_event[inside], device.duration[inside])
    np.add.at(foreign, of_event[heavy], device.duration[heavy])
    return [int(step) for step in np.flatnonzero(foreign > 0.25 * np.maximum(time, 1))]
