"""Recording a server: only where it is allowed, one at a time, under the load that there is."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from serving.conftest import Serve, Served
from sonant.cli.main import main
from sonant.profiling.analysis import analyze
from sonant.profiling.read import read_trace
from sonant.profiling.report import make_report


def record(served: Served, **body: object) -> httpx.Response:
    return httpx.post(f"{served.url}/debug/profile", json=body, timeout=60)


def load(served: Served, done: threading.Event) -> None:
    while not done.is_set():
        assert served.post(input="Hello.", response_format="pcm", max_frames=20).status_code == 200


def test_it_is_off_unless_turned_on(serve: Serve) -> None:
    assert record(serve()).status_code == 404


def test_it_wants_a_key_like_every_route(serve: Serve) -> None:
    assert record(serve(debug_profile="on", api_keys=("k",)), steps=1, timeout_s=0.1).status_code == 401


def test_steps_under_load_come_back_as_a_trace(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served, done = serve(debug_profile="on"), threading.Event()
    out = tmp_path / "live.json.gz"
    with ThreadPoolExecutor(2) as pool:
        speech = pool.submit(load, served, done)
        try:
            assert main(["profile", "attach", served.url, "--steps", "5", "-o", str(out)]) == 0
        finally:
            done.set()
        speech.result()
    assert "5 steps" in capsys.readouterr().out
    report = make_report(analyze(read_trace(out)), "live")
    assert sum(phase.steps for phase in report.phases) == 5
    assert served.post(input="Hello.", max_frames=5).status_code == 200


def test_without_load_it_says_so(serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    served = serve(debug_profile="on")
    answer = record(served, steps=5, timeout_s=0.2)
    assert answer.status_code == 409 and "send speech requests" in answer.json()["error"]["message"]
    assert main(["profile", "attach", served.url, "--timeout", "1", "-o", str(tmp_path / "x")]) == 2
    assert "send speech requests" in capsys.readouterr().err and not (tmp_path / "x").exists()


def test_a_second_recording_is_refused_meanwhile(serve: Serve) -> None:
    served = serve(debug_profile="on")
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: record(served, steps=5, timeout_s=1.0), range(4)))
    codes = sorted(answer.json()["error"]["code"] for answer in answers)
    assert codes == ["nothing_to_profile", *["profile_under_way"] * 3]


@pytest.mark.parametrize(
    "body",
    [{"steps": 0}, {"steps": 10**9}, {"steps": "5"}, {"timeout_s": 0}, {"timeout_s": 1e9}, {"stacks": 1}, {"else": 1}],
)
def test_senseless_bodies_are_refused(serve: Serve, body: dict[str, object]) -> None:
    answer = record(serve(debug_profile="on"), **body)
    assert answer.status_code == 400 and answer.json()["error"]["param"] in body


def test_attaching_to_nothing_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], serve: Serve) -> None:
    for url, message in (
        ("http://127.0.0.1:9", "no server answers"),
        ("nonsense", "no server answers"),
        (serve().url, "start it with sonant serve --debug-profile on"),
    ):
        assert main(["profile", "attach", url, "-o", str(tmp_path / "x")]) == 2
        assert message in capsys.readouterr().err
