"""What a step of ours may cost, held by the profiler's own budget: no value read by the host, no waiting, no growth."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

import sonant
from sonant import EngineConfig
from sonant.engine.step_profiler import StepRecorder
from sonant.profiling.analysis import analyze
from sonant.profiling.budget import broken_limits
from sonant.profiling.read import read_trace
from sonant.profiling.report import ProfileReport, make_report

ROWS = 2


def profiled(model: Path, folder: Path, device: str, steps: int) -> ProfileReport:
    """Steps while two streams speak, each for longer than is recorded."""
    config = EngineConfig(max_rows=ROWS, kv_tokens=4096)
    with sonant.load(model, device=device, config=config) as engine:
        engine.speak("Hello.", max_frames=4)
        streams = [engine.stream("Hello.", seed=seed, max_frames=4 * steps) for seed in range(ROWS)]
        recording = StepRecorder(engine).record(steps, timeout_s=20.0)
        for stream in streams:
            stream.abort()
    recording.save(folder / "step.json")
    return make_report(analyze(read_trace(folder / "step.json")), "step")


def test_a_step_on_the_cpu_keeps_its_budget(tiny_checkpoints: Mapping[str, Path], tmp_path: Path) -> None:
    """`kernels` are operators here; the limit is what the tiny model needs, and a tenth."""
    report = profiled(tiny_checkpoints["custom"], tmp_path, "cpu", 8)
    assert broken_limits("host_reads=0,kernels<=6500", report.metrics) == []


@pytest.mark.gpu
def test_a_step_on_the_gpu_keeps_its_budget(full_checkpoint: Path, tmp_path: Path) -> None:
    """At full size: the device is done with a tiny step before the host has asked for the next."""
    report = profiled(full_checkpoint, tmp_path, "cuda", 60)
    budget = "syncs=0,pageable=0,host_reads=0,driver_allocations=0,captures=0,graphs<=4"
    assert broken_limits(budget, report.metrics) == [], report.findings


def test_the_budget_notices_a_value_that_the_host_reads(
    tiny_checkpoints: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sonant.models.qwen3_tts.model import Qwen3TTS

    frame = Qwen3TTS.frame

    def peeking(self: Qwen3TTS, rows: torch.Tensor, span_blocks: int) -> torch.Tensor:
        out = frame(self, rows, span_blocks)
        assert out.sum().item() is not None
        return out

    monkeypatch.setattr(Qwen3TTS, "frame", peeking)
    report = profiled(tiny_checkpoints["custom"], tmp_path, "cpu", 8)
    (told,) = broken_limits("host_reads=0", report.metrics)
    assert told.startswith("host_reads is 1 a step")
