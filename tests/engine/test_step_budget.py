"""A step costs no more than today: operators on the CPU; kernels, copies and driver calls on a GPU.

If a limit is broken on purpose, replace it by the number in the failure, and say in the commit what it buys. If a step
has become cheaper, lower the limit, so that it stays so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import sonant
from engine.conftest import MakeEngine
from sonant import Engine, EngineConfig
from sonant.bench.engine.breakdown import count_steps
from sonant.bench.engine.step_counts import Counts, show_copies
from sonant.bench.engine.step_rig import StepRig
from sonant.engine.step_profiler import StepProfiler
from sonant.models.base import FramePart
from sonant.profiling.analysis import analyze
from sonant.profiling.budget import broken_limits
from sonant.profiling.read import read_trace
from sonant.profiling.report import ProfileReport, make_report

FRAMES = 4
# tiny CustomVoice model with four codebooks, two rows, torch 2.13: operators that torch dispatches
CPU_FRAME_OPERATORS = 1271
CPU_CODEC_OPERATORS = {1: 816, 16: 811}  # by frames in a chunk; views count too
# 1.7B shapes, one row. Kernels: counted on an H200 on 2026-11-15. The rest follows from the design: a copy of the row
# index in, one of the result to its own memory, one of the records out, and a wait for the previous step only. A codec
# step also has eight memsets of four bytes, one for each attention.
GPU_FRAME = {"kernels": 603, "copies": 3, "syncs": 0, "waits": 1}
GPU_CODEC = {"kernels": 229, "copies": 11, "syncs": 0, "waits": 1}  # for 16 frames
GPU_ENGINE = "syncs=0,pageable=0,host_reads=0,driver_allocations=0,captures=0,graphs<=4"  # two rows that speak


def within(counts: Counts, limits: Mapping[str, float]) -> list[str]:
    return [
        f"{name} is {getattr(counts, name):g} a step, over its limit of {limit:g}; see the top of {Path(__file__).name}"
        f" ({', '.join(f'{n:g} × {what}' for what, n in list(counts.names.items())[:12])} …)"
        for name, limit in limits.items()
        if getattr(counts, name) > limit
    ]


def add_part(engine: Engine, run: Callable[[Any], None]) -> None:
    """Add a part to every frame step."""
    engine.model.frame_parts = (*engine.model.frame_parts, FramePart("more", run, lambda rows, positions: 0))


@pytest.fixture
def rig(make_engine: MakeEngine) -> Iterator[StepRig]:
    engine = make_engine("custom", max_rows=2, codec_batch_s=2.56)  # chunks of 16 frames for both at once
    engine.close()
    with StepRig(engine, 2, FRAMES) as opened:
        yield opened


def test_a_frame_step_dispatches_no_more_operators(rig: StepRig) -> None:
    counts = count_steps(rig, rig.decode)
    assert within(counts, {"kernels": CPU_FRAME_OPERATORS, "copies": 1, "syncs": 0}) == []
    assert count_steps(rig, rig.decode).names == counts.names  # the count does not depend on the length of the speech


@pytest.mark.parametrize("frames", CPU_CODEC_OPERATORS)
def test_a_codec_step_dispatches_no_more_operators(rig: StepRig, frames: int) -> None:
    counts = count_steps(rig, lambda: rig.vocode(frames))
    assert within(counts, {"kernels": CPU_CODEC_OPERATORS[frames], "copies": 1, "syncs": 0}) == []


def test_one_more_operator_is_noticed(rig: StepRig) -> None:
    before = count_steps(rig, rig.decode)
    add_part(rig.engine, lambda step: step.record.neg())
    after = count_steps(rig, rig.decode)
    assert after.kernels == before.kernels + 1
    assert within(after, {"kernels": before.kernels})[0].startswith(f"kernels is {after.kernels:g} a step, over")


def test_a_value_that_the_host_reads_is_noticed(rig: StepRig) -> None:
    add_part(rig.engine, lambda step: step.record[0, 0].item())
    counts = count_steps(rig, rig.decode)
    assert counts.syncs == 1
    assert within(counts, {"syncs": 0})[0].startswith("syncs is 1 a step")


def profiled(engine: Engine, folder: Path, steps: int) -> ProfileReport:
    """Profile steps while two streams speak, each for longer than is recorded."""
    engine.speak("Hello.", max_frames=4)
    streams = [engine.stream("Hello.", seed=seed, max_frames=4 * steps) for seed in range(2)]
    recording = StepProfiler(engine).record(steps, timeout_s=20.0)
    for stream in streams:
        stream.abort()
    recording.save(folder / "step.json")
    return make_report(analyze(read_trace(folder / "step.json")), "step")


@pytest.mark.gpu
def test_steps_of_the_1_7b_shapes_on_a_gpu(full_checkpoint: Path, tmp_path: Path) -> None:
    """At full size, since the device finishes a tiny step before the host has launched the next."""
    show_copies(torch.device("cuda"))
    with sonant.load(full_checkpoint, device="cuda", config=EngineConfig(max_rows=2, kv_tokens=4096)) as engine:
        report = profiled(engine, tmp_path, 60)
    assert broken_limits(GPU_ENGINE, report.metrics) == [], report.findings
    with StepRig(engine, 1, FRAMES) as opened:
        assert within(count_steps(opened, opened.decode), GPU_FRAME) == []
        assert within(count_steps(opened, lambda: opened.vocode(16)), GPU_CODEC) == []
