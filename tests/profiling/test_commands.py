"""`sonant profile` as a user runs it: files in, tables, pages and exit codes out."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from torch.profiler import profile

from profiling.plays import WASTE, item, start_up, steps, zeros
from profiling.scripted import Machine, write_kineto, write_nsight
from sonant.cli.main import main


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_our_engine_is_recorded_and_looked_at(
    here: Path, few_codebooks: Mapping[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(few_codebooks["custom"])
    load = ["--concurrency", "1", "--frames", "12", "--steps", "8", "--mapping-steps", "1", "--device", "cpu"]
    files = ["--html", "page.html", "--save", "report.json", "--perfetto", "marked.json.gz"]
    assert main(["profile", "run", model, "--model", model]) == 2
    assert "given twice" in capsys.readouterr().err
    assert main(["profile", "run", "--model", model, *load, *files, "--assert", "host_reads=0,syncs=0"]) == 0
    shown = capsys.readouterr().out
    assert "found by range sonant.step" in shown and "matrix product" in shown and "stand in for kernels" in shown
    assert {p.name for p in here.iterdir()} == {"profile", "page.html", "report.json", "marked.json.gz"}
    assert {p.name for p in (here / "profile").iterdir()} == {"timing.json.gz", "mapping.json.gz"}
    kernels = json.loads((here / "report.json").read_text())["kernels"]
    assert any("sonant/" in (kernel["source"] or "") for kernel in kernels)


def test_ctrl_c_ends_a_recording(
    here: Path,
    few_codebooks: Mapping[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    started, pressed_s = profile.start, []

    def start(profiler: profile) -> None:
        started(profiler)
        pressed_s.append(time.monotonic())
        threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()

    monkeypatch.setattr(profile, "start", start)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background may ignore it
    try:
        code = main(["profile", "run", str(few_codebooks["custom"]), "--steps", "100000", "--device", "cpu"])
    finally:
        signal.signal(signal.SIGINT, before)
    assert code == 130 and "sonant: interrupted" in capsys.readouterr().err
    assert time.monotonic() - pressed_s[0] < 60  # not the five minutes that the steps may take


def test_a_trace_is_read_and_a_budget_held(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_kineto(steps(start_up(Machine()), wastes=[zeros]), here / "waste.json.gz")
    assert main(["profile", "read", "waste.json.gz", "--assert", "syncs=0,kernels<=39"]) == 0
    capsys.readouterr()
    assert main(["profile", "read", "waste.json.gz", "--assert", "fills=0,syncs=0"]) == 1
    captured = capsys.readouterr()
    assert "over budget: fills is 1 a step, not = 0 (fills and memsets)" in captured.err
    assert "memory is filled in every step" in captured.out


def test_json_is_for_programs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_nsight(steps(Machine(), wastes=[waste for waste, _, _ in WASTE.values()]), here / "trace.sqlite")
    assert main(["profile", "read", "trace.sqlite", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["metrics"]["fills"] == 1 and data["findings"][0]["rule"] == "pauses"


def test_a_diff_takes_traces_and_reports(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_kineto(steps(Machine(), wastes=[zeros, item]), here / "before.json")
    write_kineto(steps(Machine(), wastes=[item]), here / "after.json")
    assert main(["profile", "read", "before.json", "--save", "before.report.json"]) == 0
    capsys.readouterr()
    assert main(["profile", "diff", "before.report.json", "after.json", "--assert", "fills=0"]) == 0
    shown = capsys.readouterr().out
    assert "faster" in shown and "FillFunctor" in shown
    assert main(["profile", "diff", "after.json", "before.json", "--assert", "fills=0"]) == 1
    assert "slower" in capsys.readouterr().out
    assert main(["profile", "diff", "before.json", "after.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "faster"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["read", "nowhere.json"], "nowhere.json cannot be read: No such file"),
        (["read", "empty.json"], "empty.json is empty"),
        (["read", "good.json", "--assert", "speed=1"], "nothing called 'speed' is measured"),
        (["read", "good.json", "--assert", "fills"], "is no limit"),
        (["read", "good.json", "--step", "mine"], "no range is called 'mine'"),
        (["read", "good.json", "--bandwidth", "-5"], "--bandwidth"),
        (["read", "good.json", "--html", "no/folder/page.html"], "cannot write no/folder/page.html"),
        (["diff", "good.json", "nowhere.json"], "nowhere.json cannot be read"),
        (["diff", "empty.json", "good.json"], "empty.json is empty"),
        (["run", "nowhere"], "nowhere"),
        (["run", "model", "--steps", "2"], "must be at least 8"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else None,
)
def test_what_cannot_be_done_is_told(
    here: Path, command: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SONANT_MODEL", raising=False)
    write_kineto(steps(Machine(), 8), here / "good.json")
    (here / "empty.json").touch()
    try:
        code = main(["profile", *command])
    except SystemExit as e:
        code = int(e.code or 0)
    captured = capsys.readouterr()
    assert code == 2 and message in captured.err and "Traceback" not in captured.err
