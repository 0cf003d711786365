"""The commands as a user runs them: processes, a server on a socket, files, exit codes, Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from bench.samples import level
from bench.scripted import Call, in_thread
from sonant.bench.client import fetch
from sonant.bench.client.metronome import Metronome
from sonant.bench.client.prompts import built_in
from sonant.bench.client.sweep import Sweep
from sonant.bench.client.target import Target
from sonant.bench.quality.scores import Judged, Quality
from sonant.bench.report.results import FORMAT
from sonant.cli.main import main

COMMAND = (sys.executable, "-m", "sonant.cli.main", "bench")


async def quick(call: Call) -> None:
    await call.paced([0.02, 0.02])


def test_a_sweep_over_two_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counted = {"n": 0}

    def metrics() -> str:
        counted["n"] += 1
        return f"# TYPE x_tokens_total counter\nx_tokens_total {100 * counted['n']}\n"

    out = tmp_path / "run.json"
    with in_thread(quick, metrics=metrics) as server:
        where = ["--base-url", server.url, "--api-key", "sesame", "--length", "short", "--note", "gpu=none"]
        load = ["--concurrency", "1,4", "--requests", "8", "--processes", "2"]
        code = main(["bench", "serve", *where, *load, "--out", str(out), "--html", str(tmp_path / "r.html")])
    assert code == 0
    shown = capsys.readouterr().out
    assert shown.count("8/8") == 2 and "x_tokens: +100" in shown
    assert len(server.calls) == 2 * (8 + 2)  # two warm-ups per level
    said = [call.body["input"] for call in server.calls]
    assert all(said[first] not in said[2:10] for first in (0, 1))  # whose texts are others
    assert server.most_in_flight == 4
    data = json.loads(out.read_text())
    assert "sesame" not in out.read_text()
    assert data["notes"] == {"gpu": "none"} and data["client"]["processes"] == 2
    assert [len(row["samples"]) for row in data["levels"]] == [8, 8]
    for row in data["levels"]:
        assert row["client_error"]["stamp_p99_s"] > 0
        assert all(s["ttfp_s"] >= 0.02 and s["audio_s"] == 0.2 for s in row["samples"])
    assert (tmp_path / "r.html").exists()


def test_ctrl_c_prints_what_was_measured(tmp_path: Path) -> None:
    async def script(call: Call) -> None:
        await call.paced([0.05] if len(server.calls) <= 12 else [60.0])

    with in_thread(script) as server:
        # Tests that were started in the background may ignore SIGINT, and child processes inherit that.
        hearing = (
            "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
            "from sonant.cli.main import main; sys.exit(main(sys.argv[1:]))"
        )
        arguments = ["bench", "serve", "--base-url", server.url, "--concurrency", "2,4", "--out", "run.json"]
        command = [sys.executable, "-c", hearing, *arguments]
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
        deadline = time.monotonic() + 60
        while len(server.calls) < 14:
            assert time.monotonic() < deadline and running.poll() is None
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=30)
    assert running.returncode == 130, err
    assert "10/10" in out and "interrupted: only what had ended" in out
    assert "Traceback" not in err
    assert json.loads((tmp_path / "run.json").read_text())["interrupted"] is True


def test_no_load_stays_behind_when_the_command_is_killed(tmp_path: Path) -> None:
    async def long(call: Call) -> None:
        try:
            await call.paced([0.05] * 400)
        finally:
            call.writer.transport.abort()

    def until(true: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + 30
        while not true():
            assert time.monotonic() < deadline_s
            time.sleep(0.05)

    with in_thread(long) as server, (tmp_path / "err").open("wb") as err:
        load = ["--concurrency", "2", "--requests", "400", "--processes", "2", "--warmups", "0"]
        running = subprocess.Popen([*COMMAND, "serve", "--base-url", server.url, *load], stderr=err)
        until(lambda: server.in_flight == 2 and all(len(call.sent_s) > 2 for call in server.calls))
        running.kill()
        running.wait()
        seen = len(server.calls)
        until(lambda: server.calls[0].writer.is_closing() and server.calls[1].writer.is_closing())
        time.sleep(0.3)
        assert len(server.calls) == seen
    assert "Traceback" not in (tmp_path / "err").read_text()


def test_a_level_without_any_success_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    async def empty(call: Call) -> None:
        call.stream_head()
        call.end()

    with in_thread(empty) as server:
        code = main(["bench", "serve", "--base-url", server.url, "--concurrency", "2", "--requests", "4"])
    assert code == 1
    assert "0/4" in (shown := capsys.readouterr().out) and "4 failed: empty" in shown


def test_capacity_and_quality_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def three_listeners(call: Call) -> None:
        await call.paced([0.005, 0.005] if server.in_flight <= 3 else [0.005, 0.2])

    out, earlier = tmp_path / "q.json", tmp_path / "earlier.json"
    prompts = built_in(["english"], ["short"])
    rows = [Judged(p.name, p.text, 3.0, too_short=False, runaway=False) for p in (prompts * 2)[:12]]
    before = {"format": FORMAT, "kind": "quality", "levels": [Quality("2", 12, 0, rows).to_json()]}
    earlier.write_text(json.dumps(before))
    with in_thread(three_listeners) as server:
        options = ["--base-url", server.url, "--length", "short", "--warmups", "0"]
        search = ["--start", "3", "--most", "8", "--ramp", "0", "--share", "90"]
        assert main(["bench", "capacity", *options, *search]) == 0
        shown = capsys.readouterr().out
        assert "holds 3 listeners with 90 % of streams without a gap over 50 ms" in shown and "4 did not hold" in shown
        options += ["--concurrency", "2", "--requests", "12"]
        assert main(["bench", "quality", *options, "--out", str(out), "--against", str(earlier)]) == 1
    shown = capsys.readouterr().out
    assert "100.00%" in shown  # a fifth of a second is too short for any of these texts
    assert re.search(r"too short\s+0.0000\s+1.0000.*WORSE", shown)
    assert len(json.loads(out.read_text())["levels"][0]["rows"]) == 12


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ("{}", "earlier.json is damaged: KeyError"),
        ("5", "earlier.json is damaged: TypeError"),
        ("", "no load in common"),
    ],
)
def test_earlier_quality_is_read_before_anything_is_measured(
    tmp_path: Path, levels: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = tmp_path / "earlier.json"
    earlier.write_text(f'{{"format": {FORMAT}, "kind": "quality", "levels": [{levels}]}}')
    assert main(["bench", "quality", "--base-url", "http://127.0.0.1:9", "--against", str(earlier)]) == 2
    assert message in capsys.readouterr().err


def test_a_server_that_says_nothing_has_no_quality(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def broken(call: Call) -> None:
        call.whole(500, b"out of order")

    with in_thread(broken) as server:
        assert main(["bench", "quality", "--base-url", server.url, "--concurrency", "1", "--requests", "2"]) == 1
    assert "0/2" in capsys.readouterr().out


def test_quality_that_was_interrupted_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sweep, "levels", lambda sweep, loads, **_: iter([replace(level([]), interrupted=True)]))
    with in_thread(quick) as server:
        assert main(["bench", "quality", "--base-url", server.url, "--concurrency", "1"]) == 130


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--base-url", "http://127.0.0.1:9"], "no server answers at http://127.0.0.1:9"),
        (["--base-url", "ftp://x"], "no address of a server"),
        (["--base-url", "http://[::1"], "no address of a server"),
        (["--base-url", "http://local host:8000"], "no address of a server"),
        (["--base-url", "http://x", "--api-key", "open…sesame"], "characters that no header can carry"),
        (["--base-url", "http://x", "--concurrency", "1,16", "--requests", "8"], "8 is less than one for each of 16"),
        (["--base-url", "http://x", "--timeout", "nan"], "argument --timeout: must be over 0, not nan"),
        (["--base-url", "http://x", "--ramp", "-1"], "argument --ramp: must be at least 0, not -1"),
        (["--base-url", "http://x", "--out", "."], "the results cannot be written to .: it is a folder"),
        (["--base-url", "http://x", "--concurrency", "1,x"], "--concurrency takes whole numbers"),
        (["--base-url", "http://x", "--rate", "0"], "--rate takes numbers above 0"),
        (["--base-url", "http://x", "--note", "gpu"], "--note takes KEY=VALUE"),
        (["--base-url", "http://x", "--language", "klingon"], "no prompt set in 'klingon'"),
        (["--base-url", "http://x", "--ref-text", "a"], "--ref-text needs --clone"),
        (["--base-url", "http://x", "--clone", "nowhere.wav"], "nowhere.wav is not a file"),
        (["--base-url", "http://x", "--sse", "--no-stream"], "leave --no-stream away"),
        (["--base-url", "http://x", "--extra-body", "[1]"], "must be a JSON object"),
    ],
    ids=lambda v: None if isinstance(v, str) else " ".join(v[1:]),
)
def test_what_cannot_be_run_is_told(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["bench", "serve", *options])
    except SystemExit as e:
        code = int(e.code or 0)
    assert code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "line", ["serve", "capacity", "quality", "serve --html", "serve --plots", "offline", "kernels"]
)
def test_a_place_for_results_is_looked_at_before_anything_is_measured(
    tmp_path: Path, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command, option = (*line.split(), "--out")[:2]
    (tmp_path / "file").touch()
    asked = ["--base-url", "http://127.0.0.1:9"] if command in ("serve", "capacity", "quality") else []
    assert main(["bench", command, *asked, option, str(tmp_path / "file" / "run.json")]) == 2
    assert f"{tmp_path / 'file'} is no folder" in capsys.readouterr().err


def test_results_come_into_folders_that_are_not_there_yet(tmp_path: Path) -> None:
    with in_thread(quick) as server:
        asked = ["--base-url", server.url, "--length", "short", "--warmups", "0"]
        capacity, quality = tmp_path / "a" / "c.json", tmp_path / "b" / "q.json"
        search = ["--most", "1", "--ramp", "0", "--share", "50"]
        assert main(["bench", "capacity", *asked, *search, "--out", str(capacity)]) == 0
        assert main(["bench", "quality", *asked, "--concurrency", "2", "--requests", "4", "--out", str(quality)]) == 0
    assert json.loads(capacity.read_text())["listeners"] == 1
    assert json.loads(quality.read_text())["kind"] == "quality"


def test_the_server_is_asked_for_its_models_and_metrics_as_the_load_goes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    with in_thread(
        quick, metrics=lambda: f"# TYPE x_steps_total counter\nx_steps_total {len(server.calls)}\n"
    ) as server:
        assert main(["bench", "serve", "--base-url", server.url, "--concurrency", "1", "--requests", "2"]) == 0
    assert "server: x_steps: +2" in capsys.readouterr().out


def test_who_speaks_no_http_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    listening = socket.create_server(("127.0.0.1", 0))

    def greet() -> None:
        with listening, suppress(OSError):
            while True:
                caller, _ = listening.accept()
                with caller:
                    caller.recv(4096)
                    caller.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

    threading.Thread(target=greet, daemon=True).start()
    where = f"http://127.0.0.1:{listening.getsockname()[1]}"
    assert main(["bench", "serve", "--base-url", where, "--concurrency", "1", "--requests", "2"]) == 1
    assert "2 failed: protocol: not HTTP" in capsys.readouterr().out
    listening.shutdown(socket.SHUT_RDWR)


def test_a_page_that_never_ends_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_TIMEOUT_S", 0.3)
    listening = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        caller, _ = listening.accept()
        with listening, caller, suppress(OSError):
            caller.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
            for _ in range(50):
                caller.sendall(b"x")
                time.sleep(0.1)

    threading.Thread(target=drip, daemon=True).start()
    began_s = time.monotonic()
    assert fetch.fetch(Target(f"http://127.0.0.1:{listening.getsockname()[1]}"), "/metrics") is None
    assert time.monotonic() - began_s < 2


def test_the_metronome_sees_a_loop_that_is_late() -> None:
    async def run(block_s: float) -> list[float]:
        async with Metronome() as metronome:
            while not metronome.ticks:
                await asyncio.sleep(0.01)
            began = time.perf_counter()
            for _ in range(10):
                await asyncio.sleep(0.02)
                time.sleep(block_s)  # stands for a callback that takes long
            await asyncio.sleep(0.02)
            return metronome.errors_since(began)

    late = sorted(asyncio.run(run(0.05)))
    assert len(late) > 40
    assert late[-1] > 0.03  # a tick written early in a block was read at its end
    assert all(error >= 0 for error in late)
