"""Where an eager step's time goes, by clocks inside the steps themselves.

A part's time is then a share of its step's, and parts never add up to more than the step, however the machine's speed
changes meanwhile. When each part was timed alone, the rest of the step, by subtraction, came out half a second below
zero on a shared machine.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sonant.bench.engine.step_rig import StepRig

_FRAME, _CODEC = "a whole frame", "a whole codec step"


@dataclass(frozen=True)
class StepTimes:
    """Times of one frame for all rows, in ms."""

    parts: dict[str, float]  # of the frame, by name
    frame: float
    codec: float  # per frame
    step: float  # wall time


def nested_times(rig: StepRig, chunk: int, rounds: int) -> StepTimes:
    """The round whose step took the median time. A round is `chunk` decode steps and the codec steps that follow."""
    found = sorted((_round(rig, chunk) for _ in range(rounds)), key=lambda times: times.step)
    return found[len(found) // 2]


def _round(rig: StepRig, chunk: int) -> StepTimes:
    rig.drain()
    with _clocks(rig, chunk) as seconds:
        began_s = time.perf_counter()
        for _ in range(chunk):
            rig.decode()
        rig.vocode(chunk)
        rig.drain()
        wall_s = time.perf_counter() - began_s
    ms = {name: 1e3 * s / chunk for name, s in seconds.items()}
    frame, codec = ms.pop(_FRAME), ms.pop(_CODEC)
    return StepTimes(ms, frame, codec, 1e3 * wall_s / chunk)


@contextmanager
def _clocks(rig: StepRig, chunk: int) -> Iterator[dict[str, float]]:
    """Put clocks around the frame, its parts and the codec, and remove them at the end."""
    seconds: dict[str, float] = defaultdict(float)

    def clocked(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began_s = time.perf_counter()
            try:
                return run(*args, **kwargs)
            finally:
                seconds[name] += time.perf_counter() - began_s

        return timed

    model, steps = rig.engine.model, [(_FRAME, step) for step in rig.runner.frame.values()]
    steps.append((_CODEC, rig.runner.codec[chunk]))
    parts, runs = model.frame_parts, [step.run for _, step in steps]
    model.frame_parts = tuple(replace(part, run=clocked(part.name, part.run)) for part in parts)
    for name, step in steps:
        step.run = clocked(name, step.run)
    try:
        yield seconds
    finally:
        model.frame_parts = parts
        for (_, step), run in zip(steps, runs, strict=True):
            step.run = run
