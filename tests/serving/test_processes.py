"""The server in several processes: when one dies, only what it held is lost."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from serving.conftest import wait_for
from serving.kill_storm import Load, children, front_ends, kill_one, length_of, ready
from serving.process import server_processes
from serving.test_voice_routes import upload, wav
from sonant.serving.processes.scratch import remove_stale

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are found in /proc"),
    pytest.mark.slow,
]
WORKERS = 2


@pytest.fixture(scope="module")
def server(checkpoints: Mapping[str, Path]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with server_processes(ready_s=120) as run:
        process, url = run(checkpoints["custom"], "--workers", str(WORKERS), "--drain", "5")
        wait_for(lambda: front_ends(url) == WORKERS, 60)
        yield process, url


def test_a_front_end_that_is_killed_takes_its_own_along(server: tuple[subprocess.Popen[str], str]) -> None:
    process, url = server
    expected, engine = length_of(url), children(process.pid)["engine"]
    with Load(url, 4, expected) as load:
        time.sleep(1)
        for _ in range(2):
            kill_one(process.pid, "front_end", url, WORKERS)
        time.sleep(1)
    assert load.outcomes["whole"] and not load.outcomes["short"] and not load.outcomes["refused"]
    assert children(process.pid)["engine"] == engine
    stats = json.load(urllib.request.urlopen(f"{url}/v1/engine/stats"))
    wait_for(lambda: json.load(urllib.request.urlopen(f"{url}/v1/engine/stats"))["running"] == 0)
    assert stats["restarts"] == 0


def test_counters_are_those_of_all_front_ends(server: tuple[subprocess.Popen[str], str]) -> None:
    """Those of a front end that is gone still count."""
    process, url = server

    def spoken() -> float:
        lines = urllib.request.urlopen(f"{url}/metrics").read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("sonant_requests_total{"))

    before = spoken()
    for _ in range(8):
        length_of(url)
    wait_for(lambda: spoken() == before + 8)  # Requests are counted once the client took the last byte.
    assert {spoken() for _ in range(8)} == {before + 8}
    kill_one(process.pid, "front_end", url, WORKERS)
    assert spoken() == before + 8


def test_an_engine_that_is_killed_ends_its_streams_with_an_error(server: tuple[subprocess.Popen[str], str]) -> None:
    process, url = server
    expected, before = length_of(url), children(process.pid)
    with Load(url, 4, expected) as load:
        time.sleep(1)
        kill_one(process.pid, "engine", url, WORKERS)
    assert not load.outcomes["short"] and load.outcomes["broken"] + load.outcomes["refused"] > 0
    assert children(process.pid)["front_end"] == before["front_end"]
    stats = json.load(urllib.request.urlopen(f"{url}/v1/engine/stats"))
    assert stats["restarts"] == 1 and stats["ready"]
    assert length_of(url) == expected


def voices_looked_up(url: str) -> float:
    """The sum over all front ends, as reported by the one that is asked."""
    page = httpx.get(f"{url}/metrics").text
    return sum(map(float, re.findall(r"^sonant_voice_cache_(?:hits|misses)_total (\S+)", page, re.MULTILINE)))


def test_limits_hold_over_all_front_ends(checkpoints: Mapping[str, Path], tmp_path: Path) -> None:
    """And a voice that was uploaded to one of them is spoken by the others at once."""
    with server_processes(ready_s=120) as run:
        limits = ("--max-streams-per-client", "2", "--ws-max-sessions", "1", "--max-requests-per-minute", "30")
        voices = ("--voices", str(tmp_path), "--consent", "asserted")
        _, url = run(checkpoints["base"], "--workers", "3", *limits, *voices)
        wait_for(lambda: front_ends(url) == 3, 60)
        taken = upload(url, wav(), name="me", consent="I agree to this.", ref_text="hello the world")
        assert taken.status_code == 200, taken.text
        body = {"input": "hello the world", "voice": "me", "max_frames": 3, "response_format": "pcm"}
        heard = [httpx.post(f"{url}/v1/audio/speech", json=body, timeout=60) for _ in range(8)]  # a connection for each
        assert [answer.status_code for answer in heard] == [200] * 8
        wait_for(lambda: [voices_looked_up(url) for _ in range(6)] == [8] * 6)  # whichever front end is asked
        endless = {**body, "input": "hello the world. " * 200, "max_frames": 5000}
        with ExitStack() as streams:
            for _ in range(2):
                stream = streams.enter_context(httpx.stream("POST", f"{url}/v1/audio/speech", json=endless, timeout=60))
                assert stream.status_code == 200
            third = [httpx.post(f"{url}/v1/audio/speech", json=body, timeout=60) for _ in range(4)]
            assert {answer.status_code for answer in third} == {429}
            assert {answer.json()["error"]["code"] for answer in third} == {"too_many_requests"}
        codes = [httpx.post(f"{url}/v1/audio/speech", json=body, timeout=60).status_code for _ in range(30)]
        assert 429 in codes  # a minute's requests are used up, whichever front ends took them


def test_sigterm_lets_listeners_hear_the_end(checkpoints: Mapping[str, Path]) -> None:
    with server_processes(ready_s=120) as run:
        process, url = run(checkpoints["custom"], "--workers", "1")
        expected = length_of(url)
        with Load(url, 2, expected) as load:
            time.sleep(0.5)
            process.send_signal(signal.SIGTERM)
            load.stop.set()
        assert process.wait(30) == 0
    assert load.outcomes["whole"] >= 2 and not load.outcomes["short"] and not load.outcomes["broken"]
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=1)


def test_nobody_outlives_the_first_process(server: tuple[subprocess.Popen[str], str]) -> None:
    """This must be the last test with the shared server, since it kills it."""
    process, url = server
    pids = [pid for group in children(process.pid).values() for pid in group]
    assert len(pids) == WORKERS + 1 and ready(url)
    os.kill(process.pid, signal.SIGKILL)
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() and _alive(pid) for pid in pids), 10)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_what_a_killed_server_left_is_taken_away_by_the_next(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    gone, here, other = (tmp_path / name for name in (f"sonant-{ended.pid}-x1", f"sonant-{os.getpid()}-x2", "sonant-x"))
    nobodys = tmp_path / f"sonant-{10**20}-x3"  # of no process, whoever made it
    for folder in (gone, here, other, nobodys):
        folder.mkdir()
        (folder / "engine").touch()
    remove_stale(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([here, other])


def test_a_port_that_is_taken_is_said_so_at_once(checkpoints: Mapping[str, Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = ["-m", "sonant.cli.main", "serve", str(checkpoints["custom"]), "--workers", "1", "--port", str(port)]
        ended = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and "in use" in ended.stderr and "--port" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("wrong", [("--allow-url", "*"), ("--codec", "x"), ("nowhere",)])
def test_what_all_processes_find_wrong_is_said_once(checkpoints: Mapping[str, Path], wrong: tuple[str, ...]) -> None:
    command = ["-m", "sonant.cli.main", "serve", str(checkpoints["custom"]), *wrong, "--workers", "3", "--port", "0"]
    ended = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=90)
    told = [line for line in ended.stderr.splitlines() if line.startswith("sonant: ")]
    assert ended.returncode == 2 and len(told) == 1, ended.stderr


def test_front_ends_that_cannot_start_end_the_server(checkpoints: Mapping[str, Path], tmp_path: Path) -> None:
    """Here the library that encodes sound is broken. Front ends are not restarted in an endless loop."""
    (tmp_path / "av.py").write_text("")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["-m", "sonant.cli.main", "serve", str(checkpoints["custom"]), "--workers", "1", "--port", str(port)]
    ended = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=90)
    assert ended.returncode == 2 and "would again" in ended.stderr and "no attribute 'open'" in ended.stderr
