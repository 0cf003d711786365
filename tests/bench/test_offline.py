"""`sonant bench offline` as a user runs it, and whether what it measures is the engine's own step."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import sonant
from sonant import Engine, EngineConfig
from sonant.bench.engine import breakdown, device_clock, startup
from sonant.bench.engine.startup import Stages, StartupJob, measure
from sonant.bench.engine.step_counts import _from_trace
from sonant.bench.engine.step_rig import StepRig
from sonant.cli.main import main
from sonant.errors import ConfigError
from sonant.models.base import FramePart, FrameStep
from sonant.models.weights import weight_bytes

Folders = Mapping[str, Path]
Captured = pytest.CaptureFixture[str]
FRAMES = 6


@pytest.fixture
def closed(few_codebooks: Folders) -> Iterator[Engine]:
    with sonant.load(few_codebooks["custom"], device="cpu", config=EngineConfig(max_rows=3)) as engine:
        pass
    yield engine
    stats = engine.stats()
    assert (stats.free_rows, stats.free_blocks) == (stats.rows, stats.blocks)


def test_all_figures_in_a_table_a_file_and_a_picture(
    few_codebooks: Folders, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_clock, "_BATCH_MS", 1.0)  # one run a batch is precise enough to be printed
    monkeypatch.setattr(breakdown, "_WALL_ROUNDS", 1)
    monkeypatch.setattr(breakdown, "_EAGER_BATCHES", 1)
    out, plot = tmp_path / "deep" / "report.json", tmp_path / "report.png"
    options = ["--streams", "1,2", "--frames", str(FRAMES), "--device", "cpu", "--out", str(out), "--plot", str(plot)]
    assert main(["bench", "offline", "--model", str(few_codebooks["custom"]), *options]) == 0
    shown = capsys.readouterr().out
    for word in ("talker", "its sampling", "codec by 1", "gaps", "audio-s/s", "Saturated", "syncs", "floor"):
        assert word in shown
    assert plot.read_bytes().startswith(b"\x89PNG")
    data = json.loads(out.read_text())
    assert (data["kind"], data["frames"]) == ("offline", FRAMES)
    assert data["machine"]["packages"]["torch"] and data["machine"]["cpu_cores"] >= 1
    assert [row["streams"] for row in data["levels"]] == [row["streams"] for row in data["breakdowns"]] == [1, 2]
    assert data["saturated"]["requests"] == 4 and data["saturated"]["audio_s_per_s"] > 0
    for row in data["breakdowns"]:
        assert sum(p["ms"] for p in row["parts"]) == pytest.approx(row["step_ms"])
        parts = {p["name"]: p for p in row["parts"]}
        for name in ("talker", "predictor", "codec"):
            assert parts[name]["ms"] > 0 and parts[name]["share_of_floor"] > 0
        assert row["frame_counts"]["kernels"] > 1000 and row["frame_counts"]["syncs"] == 0
        assert set(row["codec_ms"]) == {"1", "2", "4", "8", "16"}


def test_what_is_timed_is_what_a_step_runs(closed: Engine) -> None:
    ran: list[str] = []

    def noted(part: FramePart) -> FramePart:
        def run(step: FrameStep) -> None:
            ran.append(part.name)
            part.run(step)

        return replace(part, run=run)

    parts = closed.model.frame_parts
    closed.model.frame_parts = tuple(noted(part) for part in parts)
    with StepRig(closed, 3, FRAMES) as rig, torch.inference_mode():
        ran.clear()
        rig.decode()
        rig.drain()
        assert ran == [part.name for part in parts]
        ran.clear()
        timed = [name for name, _, _ in breakdown._frame_parts(rig)]
    assert list(dict.fromkeys(ran)) == [part.name for part in parts]
    assert timed == ["talker", "first code", "predictor", "its sampling", "next input"]


def test_no_time_is_below_zero_when_the_machine_was_slower_for_the_parts_alone(
    closed: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = breakdown._frame_parts

    def slow(rig: StepRig) -> list[tuple[str, float, int]]:
        """As if other processes slowed down this run; a part that is found by a difference comes out negative."""
        return [(name, -3.0 if name == "its sampling" else 500.0 + ms, moved) for name, ms, moved in alone(rig)]

    threads: set[threading.Thread] = set()

    def watched(part: FramePart) -> FramePart:
        def run(step: FrameStep) -> None:
            threads.add(threading.current_thread())
            part.run(step)

        return replace(part, run=run)

    parts = closed.model.frame_parts
    closed.model.frame_parts = tuple(watched(part) for part in parts)
    monkeypatch.setattr(breakdown, "_frame_parts", slow)
    monkeypatch.setattr(breakdown, "_WALL_ROUNDS", 1)
    found = breakdown.break_down(closed, 2, FRAMES, 1e10)
    assert all(part.ms >= 0 for part in found.parts)
    assert sum(part.ms for part in found.parts) == pytest.approx(found.step_ms)
    # The engine never steps in a process's main thread, where waiting is costly, and neither does the measurement.
    assert threads and threading.main_thread() not in threads
    assert [part.name for part in closed.model.frame_parts] == [part.name for part in parts]


def test_a_rig_repeats_one_step_and_leaves_its_rows(closed: Engine) -> None:
    with StepRig(closed, 3, FRAMES) as rig:
        before = rig.positions
        assert before > 3 * FRAMES
        for _ in range(5):
            rig.decode()
        rig.vocode(4)
        rig.drain()
        assert rig.positions == before


def test_a_rig_is_refused_while_the_engine_runs_and_beyond_its_rows(few_codebooks: Folders, closed: Engine) -> None:
    with (
        sonant.load(few_codebooks["custom"], device="cpu") as running,
        pytest.raises(ConfigError, match="close it first"),
    ):
        StepRig(running, 1, FRAMES)
    with pytest.raises(ConfigError, match="4 rows were asked for, and the engine has 3"):
        StepRig(closed, 4, FRAMES)


def test_a_rig_without_room_says_so_and_gives_back_what_it_had(few_codebooks: Folders) -> None:
    config = EngineConfig(max_rows=3, kv_tokens=256)
    with sonant.load(few_codebooks["custom"], device="cpu", config=config) as engine:
        pass
    with pytest.raises(ConfigError, match="raise kv_tokens"), StepRig(engine, 3, FRAMES):
        pass
    stats = engine.stats()
    assert (stats.free_rows, stats.free_blocks, stats.running, stats.waiting) == (stats.rows, stats.blocks, 0, 0)


def test_more_positions_in_the_cache_raise_the_floor(closed: Engine) -> None:
    parts = {part.name: part for part in closed.model.frame_parts}
    with StepRig(closed, 3, FRAMES) as rig:
        positions = rig.positions
    one, three = (parts["talker"].floor_bytes(rows, rows * positions // 3) for rows in (1, 3))
    assert one < three < 3 * one  # the cache grows, the weights do not
    talker = closed.model.modules.talker  # type: ignore[attr-defined]
    (group,) = closed.model.spec.kv
    cache = positions * 2 * 4 * group.layers * 2 * 32  # float32, two heads of 32
    assert three == weight_bytes(talker.model.layers, talker.codec_head) + cache
    inner = parts["predictor"].inner
    assert inner is not None
    without = [parts["predictor"].floor_bytes(rows, 0) - inner.floor_bytes(rows) for rows in (1, 3)]
    assert without[0] == without[1]


def test_a_fresh_process_tells_where_its_start_went(few_codebooks: Folders) -> None:
    stages = startup._start(StartupJob(str(few_codebooks["custom"]), "cpu", "auto", "auto", 1))
    assert min(stages.imports, stages.weights, stages.memory, stages.engine, stages.first_request) > 0
    assert min(stages.kernels, stages.graphs) >= 0
    assert stages.imports > stages.engine  # torch alone takes longer than a tiny engine


def test_the_second_start_is_the_warm_one(monkeypatch: pytest.MonkeyPatch) -> None:
    started = iter([Stages(4.0, 3.0, 0.5, 1.0, 0.5, 1.0), Stages(1.0, 1.0, 0.25, 0.25, 0.5, 0.5)])
    monkeypatch.setattr(startup, "_start", lambda job: next(started))
    found = measure(StartupJob("model", "cpu", "auto", "auto", 1))
    assert (found.first.total, found.warm.total) == (10.0, 3.5)


def test_a_process_that_cannot_start_is_told_with_its_reason() -> None:
    with pytest.raises(ConfigError, match="nowhere is not a folder"):
        measure(StartupJob("nowhere", "cpu", "auto", "auto", 1))


def event(kind: str, name: str, at: float, length: float = 1.0) -> dict[str, Any]:
    return {"ph": "X", "cat": kind, "name": name, "ts": at, "dur": length}


def test_a_trace_is_counted_by_what_ran_on_the_device_and_who_waited() -> None:
    events = [
        event("user_annotation", "sonant.counted", 10, 100),
        event("gpu_user_annotation", "sonant.counted", 12, 100),
        event("cuda_runtime", "cudaGraphLaunch", 11),
        *(event("kernel", name, 20 + n) for n, name in enumerate(["_gemv", "_gemv", "_sample", "_gemv"])),
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 30),
        event("gpu_memset", "Memset (Device)", 31),
        event("cuda_runtime", "cudaEventSynchronize", 40),
        event("cuda_runtime", "cudaEventSynchronize", 41),
        event("cuda_runtime", "cudaStreamSynchronize", 42),
        event("cuda_runtime", "cudaDeviceSynchronize", 115),  # after the work: the measurement's own wait
        event("kernel", "_late", 120),  # launched by the work, but run after the host had gone on
        {"ph": "M", "name": "process_name"},
    ]
    counts = _from_trace(events, runs=2)
    assert (counts.kernels, counts.copies, counts.syncs, counts.waits) == (2.5, 1.0, 0.5, 1.0)
    assert counts.names == {"_gemv": 1.5, "_sample": 0.5, "_late": 0.5}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--streams", "1,x"], "--streams takes whole numbers"),
        (["--streams", "0"], "--streams takes numbers of at least 1"),
        (["--measure", "streams,dreams"], "--measure has no 'dreams'; choose from streams, steps"),
        (["--measure", "streams", "--plot", "x.png"], "--plot draws what streams and steps measure"),
        (["--held-share", "100"], "--held-share must be a percentage from 50"),
        (["--held-frames", "1"], "must be at least 2"),
    ],
    ids=lambda v: None if isinstance(v, str) else " ".join(v),
)
def test_what_cannot_be_measured_is_told_before_anything_is_loaded(
    options: list[str], message: str, capsys: Captured
) -> None:
    try:
        code = main(["bench", "offline", "--model", "nowhere", "--device", "cpu", *options])
    except SystemExit as e:
        code = int(e.code or 0)
    assert code == 2
    assert message in capsys.readouterr().err


def test_a_plot_without_matplotlib_is_refused_at_once(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["bench", "offline", "--model", "nowhere", "--device", "cpu", "--plot", "x.png"]) == 2
    assert "pip install 'sonant[bench]'" in capsys.readouterr().err


def test_the_bandwidth_of_a_card_that_is_nearly_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine fills most of a small card: the copy that is timed is smaller then, and without any room it raises."""
    asked, left = [], [1 << 26]

    def ones(size: int, **options: Any) -> torch.Tensor:
        asked.append(size)
        if size > left[0]:
            raise torch.OutOfMemoryError
        return torch.zeros(size, **options)

    monkeypatch.setattr(device_clock, "_BATCH_MS", 1.0)
    monkeypatch.setattr(torch, "ones", ones)
    assert device_clock.copy_bandwidth(torch.device("cpu")) > 0
    assert asked == [1 << 27, 1 << 26]
    left[0] = 0
    with pytest.raises(torch.OutOfMemoryError):
        device_clock.copy_bandwidth(torch.device("cpu"))
