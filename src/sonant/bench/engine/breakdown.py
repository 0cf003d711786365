"""Where a step's time goes: by part, with the bytes that each part cannot avoid moving, and what the host adds.

Device time is that of CUDA graphs that hold one part each, replayed for the same bucket and the same rows. The parts
are those of the model's frame step. The whole frame is the engine's own graph, and "rest" is what its parts do not
explain. Wall time is that of the engine's own steps, launched one ahead of the host; its excess over the device's time
is "gaps". On the CPU, where nothing runs ahead, clocks inside the steps measure all of it; parts are timed alone only
to divide one that contains another.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sonant.bench.engine.device_clock import time_ms
from sonant.bench.engine.nested_clock import StepTimes, nested_times
from sonant.bench.engine.step_counts import Counts, count
from sonant.bench.engine.step_rig import StepRig, step_bucket
from sonant.device_copy import to_device
from sonant.engine.engine import Engine
from sonant.engine.graphs import GraphedStep, GraphPool, capture_graph
from sonant.models.base import FrameStep

_WALL_ROUNDS = 5
_EAGER_ROUNDS = 3  # each takes seconds on a CPU
_EAGER_BATCHES = 3
_STEPS_A_ROUND = 16


@dataclass(frozen=True)
class PartTime:
    """The time of one part of a frame, for all rows."""

    name: str
    ms: float
    floor_ms: float  # the time to move its bytes; 0: it has none of its own
    gb_per_s: float

    @property
    def share(self) -> float:
        """The floor's share of the time: 1 is as fast as bytes can move."""
        return self.floor_ms / self.ms if self.ms > 0 else 0.0


@dataclass(frozen=True)
class Breakdown:
    streams: int
    bucket: int  # rows that the graph works on
    mean_positions: float  # in the cache, for each row
    chunk_frames: int  # frames that the codec gets at once
    parts: list[PartTime]  # of the frame, then rest, codec and gaps: they add up to step_ms
    frame_ms: float  # the whole frame on the device
    codec_ms: dict[int, float]  # time per frame, by the number of frames at once
    step_ms: float  # wall time of a frame, its share of the codec included
    floor_ms: float
    frame_counts: Counts
    codec_counts: Counts


def break_down(engine: Engine, streams: int, frames: int, bandwidth: float) -> Breakdown:
    """Break down a step of an engine that has been closed. Rows are at the end of their prompt and `frames` frames.

    On the CPU this runs in a thread of its own, as the engine's steps do: in a process's first thread OpenMP's workers
    spin while they wait, and on a busy machine a step takes ten times as long there as in the engine.
    """
    if engine.device.type == "cuda":
        return _break_down(engine, streams, frames, bandwidth)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_break_down, engine, streams, frames, bandwidth).result()


def _break_down(engine: Engine, streams: int, frames: int, bandwidth: float) -> Breakdown:
    with StepRig(engine, streams, frames) as rig, torch.inference_mode():
        chunk = engine.sizes.chunks[-1]

        def timed(name: str, ms: float, moved: float = 0.0) -> PartTime:
            return PartTime(name, ms, 1e3 * moved / bandwidth, moved / ms / 1e6 if ms > 0 else 0.0)

        found, times, codec_ms = _times(rig, chunk)
        parts = [timed(*part) for part in found]
        frame_ms, step_ms = times.frame, times.step
        codec_moved = sum(engine.model.codec_floor_bytes(len(g), chunk) for g in rig.groups(chunk)) / chunk
        parts += [
            timed("rest", frame_ms - sum(part.ms for part in parts)),
            timed("codec", codec_ms[chunk], codec_moved),
            timed("gaps", step_ms - frame_ms - codec_ms[chunk]),
        ]
        return Breakdown(
            streams=streams,
            bucket=step_bucket(rig.runner, streams),
            mean_positions=rig.positions / streams,
            chunk_frames=chunk,
            parts=parts,
            frame_ms=frame_ms,
            codec_ms=codec_ms,
            step_ms=step_ms,
            floor_ms=sum(p.floor_ms for p in parts),
            frame_counts=count_steps(rig, rig.decode),
            codec_counts=count_steps(rig, lambda: rig.vocode(chunk)),
        )


def _times(rig: StepRig, chunk: int) -> tuple[list[tuple[str, float, int]], StepTimes, dict[int, float]]:
    """Name, ms and bytes of each part; the times of a whole step; the codec's times by the number of frames at once."""
    alone = _frame_parts(rig)
    if rig.engine.device.type == "cuda":
        codec_ms = {n: _codec_ms(rig, n) for n in rig.engine.sizes.chunks}
        return alone, StepTimes({}, _frame_ms(rig), codec_ms[chunk], _step_ms(rig, chunk)), codec_ms
    codec_ms = {n: _codec_ms(rig, n) for n in rig.engine.sizes.chunks if n != chunk}
    times = nested_times(rig, chunk, min(_WALL_ROUNDS, _EAGER_ROUNDS))
    return _split(rig, alone, times), times, codec_ms | {chunk: times.codec}


def _split(rig: StepRig, alone: list[tuple[str, float, int]], times: StepTimes) -> list[tuple[str, float, int]]:
    """Each part with its time within the step. If it contains another, their times alone tell how to divide it."""
    alone_ms = {name: max(0.0, ms) for name, ms, _ in alone}  # an inner part's time is a difference, and may be below 0
    found = dict(times.parts)
    for part in rig.engine.model.frame_parts:
        if part.inner is not None:
            whole, inside = found[part.name], alone_ms[part.inner.name]
            found[part.inner.name] = whole * inside / (alone_ms[part.name] + inside)
            found[part.name] = whole - found[part.inner.name]
    return [(name, found[name], moved) for name, _, moved in alone]


def count_steps(rig: StepRig, step: Callable[[], None]) -> Counts:
    """Count for a step of the engine as it runs: row writes, graph, and the results' way back to the host."""
    rig.drain()
    step()  # with one step ahead, each counted step then collects the one before
    counts = count(step, rig.engine.device)
    rig.drain()
    return counts


def _frame_parts(rig: StepRig) -> list[tuple[str, float, int]]:
    """Name, ms and bytes of each part of a frame step, run on what the parts before it have left."""
    runner, model = rig.runner, rig.engine.model
    padded = np.full(step_bucket(runner, len(rig.requests)), runner.rows.scratch)
    padded[: len(rig.requests)] = rig.rows
    rows = to_device(padded, rig.engine.device)
    step = model.begin_frame(rows, runner.span_blocks, rig.requests[0].prompt.variant)
    found: list[tuple[str, float, int]] = []
    for part in model.frame_parts:
        before = copy(step)
        part.run(step)
        ms, moved = _part_ms(part.run, before, part.repeats), part.floor_bytes(len(rows), rig.positions)
        if part.inner is None:
            found.append((part.name, ms, moved))
        else:
            without_ms = _part_ms(part.inner.run_without, before, part.repeats)
            inner = part.inner.floor_bytes(len(rows))
            found += [(part.name, without_ms, moved - inner), (part.inner.name, ms - without_ms, inner)]
    return found


def _part_ms(run: Callable[[Any], None], given: FrameStep, repeats: int) -> float:
    """The time of one run, always on a copy of `given`: its results must not become its inputs."""
    device = given.rows.device

    def repeated(rows: Tensor) -> Tensor:
        for _ in range(repeats):
            run(copy(given))
        return rows

    if device.type != "cuda":
        return time_ms(lambda: run(copy(given)), device, batches=_EAGER_BATCHES)
    captured = capture_graph("part", repeated, given.rows, GraphPool(device))
    return time_ms(captured.graph.replay, device) / repeats


def _frame_ms(rig: StepRig) -> float:
    return _graphed_ms(rig.runner.frame[rig.requests[0].prompt.variant], rig.rows, rig)


def _codec_ms(rig: StepRig, frames: int) -> float:
    """Time per frame for all rows, in the groups that the engine would make."""
    sizes = [[r.row for r in group] for group in rig.groups(frames)]
    known: dict[int, float] = {}
    for rows in sizes:
        if len(rows) not in known:
            known[len(rows)] = _graphed_ms(rig.runner.codec[frames], rows, rig)
    return sum(known[len(rows)] for rows in sizes) / frames


def _graphed_ms(step: GraphedStep, rows: list[int], rig: StepRig) -> float:
    """The time of the engine's own graph, without the copy of its row indices."""
    device = rig.engine.device
    step(rows)
    bucket = next((size for size in step.captured if size >= len(rows)), None)
    if bucket is None:
        return time_ms(lambda: step(rows), device, batches=_EAGER_BATCHES)
    return time_ms(step.captured[bucket].graph.replay, device)


def _step_ms(rig: StepRig, chunk: int) -> float:
    """Wall time of a frame, over cycles of `chunk` decode steps and the codec steps that follow."""
    rounds = []
    cycles = max(1, _STEPS_A_ROUND // chunk)
    for _ in range(_WALL_ROUNDS):
        rig.drain()
        began_s = time.perf_counter()
        for _ in range(cycles):
            for _ in range(chunk):
                rig.decode()
            rig.vocode(chunk)
        rig.drain()
        rounds.append(1e3 * (time.perf_counter() - began_s) / (cycles * chunk))
    return statistics.median(rounds)
