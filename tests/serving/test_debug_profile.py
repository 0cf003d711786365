"""Recording a server: only where it is allowed, one at a time, under the load that there is."""

from __future__ import annotations

import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from serving.conftest import Serve, Served
from sonant.cli.main import main
from sonant.profiling.analysis import analyze
from sonant.profiling.read import read_trace
from sonant.profiling.report import make_report


@pytest.fixture(scope="module")
def plain(serve_once: Serve) -> Served:
    return serve_once()


@pytest.fixture(scope="module")
def served(serve_once: Serve) -> Served:
    return serve_once(debug_profile="on")


def record(served: Served, **body: object) -> httpx.Response:
    return httpx.post(f"{served.url}/debug/profile", json=body, timeout=60)


def load(served: Served, done: threading.Event) -> None:
    while not done.is_set():
        assert served.post(input="Hello.", response_format="pcm", max_frames=20).status_code == 200


def test_it_is_off_unless_turned_on(plain: Served) -> None:
    assert record(plain).status_code == 404


def test_it_wants_a_key_like_every_route(serve: Serve) -> None:
    assert record(serve(debug_profile="on", api_keys=("k",)), steps=1, timeout_s=0.1).status_code == 401


def test_steps_under_load_come_back_as_a_trace(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = threading.Event()
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


def test_without_load_it_says_so(served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = record(served, steps=5, timeout_s=0.2)
    assert answer.status_code == 409 and "send speech requests" in answer.json()["error"]["message"]
    assert main(["profile", "attach", served.url, "--timeout", "1", "-o", str(tmp_path / "x")]) == 2
    assert "send speech requests" in capsys.readouterr().err and not (tmp_path / "x").exists()


def test_a_second_recording_is_refused_meanwhile(served: Served) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: record(served, steps=5, timeout_s=1.0), range(4)))
    codes = sorted(answer.json()["error"]["code"] for answer in answers)
    assert codes == ["nothing_to_profile", *["profile_under_way"] * 3]


@pytest.mark.parametrize(
    "body",
    [{"steps": 0}, {"steps": 10**9}, {"steps": "5"}, {"timeout_s": 0}, {"timeout_s": 1e9}, {"stacks": 1}, {"else": 1}],
)
def test_senseless_bodies_are_refused(served: Served, body: dict[str, object]) -> None:
    answer = record(served, **body)
    assert answer.status_code == 400 and answer.json()["error"]["param"] in body


def test_attaching_to_nothing_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], plain: Served) -> None:
    for url, message in (
        ("http://127.0.0.1:9", "no server answers"),
        ("nonsense", "no server answers"),
        (plain.url, "start it with sonant serve --debug-profile on"),
    ):
        assert main(["profile", "attach", url, "-o", str(tmp_path / "x")]) == 2
        assert message in capsys.readouterr().err


def test_a_trace_that_breaks_off_leaves_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.send_header("content-length", "100")
            self.end_headers()
            self.wfile.write(b"half a trace")

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Broken) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert main(["profile", "attach", url, "-o", str(tmp_path / "x")]) == 2
        assert "broke off" in capsys.readouterr().err and not (tmp_path / "x").exists()
        assert main(["profile", "attach", url, "-o", str(tmp_path / "no folder" / "x")]) == 2
        assert "cannot write" in capsys.readouterr().err
        server.shutdown()


def test_a_trace_that_finds_no_room_leaves_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Whole(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.send_header("content-length", "100000")
            self.end_headers()
            self.wfile.write(bytes(100_000))

        def log_message(self, *_: object) -> None:
            return

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with ThreadingHTTPServer(("127.0.0.1", 0), Whole) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url, out = f"http://127.0.0.1:{server.server_port}", tmp_path / "x"
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, hard))  # as on a disk that is nearly full
        try:
            assert main(["profile", "attach", url, "-o", str(out)]) == 2
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert f"cannot write {out}" in capsys.readouterr().err and not out.exists()
        assert main(["profile", "attach", url, "-o", str(out)]) == 0
        server.shutdown()
