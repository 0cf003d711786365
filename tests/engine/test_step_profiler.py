"""Recording an engine's steps: what is recorded, and that the engine goes on as before."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

import sonant
from sonant import Engine, EngineConfig
from sonant.engine.step_profiler import StepProfiler
from sonant.errors import ConfigError, EngineError, Overloaded
from sonant.profiling.analysis import analyze
from sonant.profiling.read import read_trace
from sonant.profiling.report import make_report


@pytest.fixture
def engine(tiny_checkpoints: Mapping[str, Path]) -> Iterator[Engine]:
    with sonant.load(tiny_checkpoints["custom"], device="cpu", config=EngineConfig(max_rows=2)) as engine:
        yield engine


def speak_until(engine: Engine, done: threading.Event) -> list[np.ndarray]:
    codes = []
    while not done.is_set():
        codes.append(engine.speak("Hello.", seed=3, max_frames=6).frames)
    return codes


def test_steps_under_load_are_recorded_and_speech_is_the_same(engine: Engine, tmp_path: Path) -> None:
    expected = engine.speak("Hello.", seed=3, max_frames=6).frames
    done = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        speech = pool.submit(speak_until, engine, done)
        try:
            recording = StepProfiler(engine).record(5, stacks=True)
        finally:
            done.set()
        for codes in speech.result():
            np.testing.assert_array_equal(codes, expected)
    assert recording.complete and recording.steps == 5
    recording.save(tmp_path / "trace.json.gz")
    report = make_report(analyze(read_trace(tmp_path / "trace.json.gz")), "trace")
    assert report.steps_by.startswith("range sonant.step")
    assert sum(phase.steps for phase in report.phases) == 5
    assert any("sonant/" in (kernel.source or "") for kernel in report.kernels)


def test_nothing_of_it_stays(engine: Engine) -> None:
    before = dict(engine.loop.__dict__), dict(engine.loop.runner.__dict__)
    StepProfiler(engine).record(1, timeout_s=0.2)
    after = dict(engine.loop.__dict__), dict(engine.loop.runner.__dict__)
    assert [d.keys() for d in after] == [d.keys() for d in before]
    assert engine.speak("Hello.", seed=3, max_frames=3).frames.size


def test_an_idle_engine_gives_an_empty_recording_in_time(engine: Engine) -> None:
    began = time.monotonic()
    recording = StepProfiler(engine).record(5, timeout_s=0.3)
    assert recording.steps == 0 and not recording.complete
    assert time.monotonic() - began < 10


def test_a_recording_is_stopped_from_outside(engine: Engine) -> None:
    recorder, began = StepProfiler(engine), time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        recording = pool.submit(recorder.record, 5, timeout_s=60.0)
        time.sleep(0.2)
        recorder.stop()
        assert not recording.result().complete
    assert time.monotonic() - began < 30
    assert engine.speak("Hello.", seed=3, max_frames=3).frames.size


def test_a_recording_that_is_interrupted_leaves_the_engine_as_it_was(engine: Engine) -> None:
    recorder = StepProfiler(engine)
    recorder._stopped = Mock(is_set=Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        recorder.record(5, graphs=False)
    graphs, frame = engine.loop.runner.graphs, engine.loop.runner.frame
    assert engine.loop._observer is None and not graphs.warmup.held and all(step.replays for step in frame.values())


def test_two_recordings_at_once_are_refused(engine: Engine) -> None:
    recorder = StepProfiler(engine)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(recorder.record, 5, timeout_s=2.0)
        time.sleep(0.3)
        with pytest.raises(Overloaded, match="under way"):
            recorder.record(5)
        assert first.result().steps == 0
    assert recorder.record(5, timeout_s=0.1).steps == 0


def test_a_profiler_that_fails_leaves_the_engine_running(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object) -> None:
        raise RuntimeError("no CUPTI")

    monkeypatch.setattr("sonant.engine.step_profiler.profile.start", fail)
    with pytest.raises(EngineError, match="the profiler failed: no CUPTI"):
        StepProfiler(engine).record(5)
    assert engine.speak("Hello.", seed=3, max_frames=3).frames.size


def test_an_engine_that_fails_meanwhile_is_told_and_the_next_one_can_be_recorded(
    engine: Engine, tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(engine.model, "begin_frame", fail)
    with ThreadPoolExecutor(1) as pool:
        recording = pool.submit(StepProfiler(engine).record, 5, timeout_s=20.0)
        time.sleep(0.2)
        with pytest.raises(EngineError, match="out of memory"):
            engine.speak("Hello.", max_frames=3)
        with pytest.raises(EngineError, match="load it again"):
            recording.result()
    with sonant.load(tiny_checkpoints["custom"], device="cpu", config=EngineConfig(max_rows=2)) as other:
        stream = other.stream("Hello.", seed=3, max_frames=6)
        assert StepProfiler(other).record(3, timeout_s=20.0).steps >= 3
        stream.abort()


def test_a_closed_engine_is_told(engine: Engine) -> None:
    engine.close()
    with pytest.raises(EngineError, match="load it again"):
        StepProfiler(engine).record(5, timeout_s=0.1)


@pytest.mark.parametrize(("steps", "timeout_s"), [(0, 1.0), (-1, 1.0), (1, 0.0), (1, float("nan"))])
def test_senseless_bounds_are_refused(engine: Engine, steps: int, timeout_s: float) -> None:
    with pytest.raises(ConfigError):
        StepProfiler(engine).record(steps, timeout_s=timeout_s)
