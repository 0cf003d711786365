"""`sonant serve --replicas`, as an operator runs it: it starts Ray, answers, drains, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from serving.cluster_processes import Cluster, alone, fetch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="sonant[ray] is not installed"),
]
PORT = 8773


def left() -> list[int]:
    found = Cluster("", 0, lambda _: None)
    return [pid for kind in ("replica", "engine", "proxy", "controller") for pid in found.pids(kind)]


def test_replicas_by_one_command_and_nothing_left_after_sigterm(checkpoints: Mapping[str, Path]) -> None:
    url = f"http://127.0.0.1:{PORT}"
    command = [sys.executable, "-m", "sonant.cli.main", "serve", str(checkpoints["endless"]), "--port", str(PORT)]
    command += ["--replicas", "2", "--replica-cpus", "0.1", "--device", "cpu", "--drain", "20", "--route", "voice"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}
    with alone():
        before = left()
        server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deadline_s = time.monotonic() + 120
            while fetch(f"{url}/ready") is None:
                assert server.poll() is None and time.monotonic() < deadline_s
                time.sleep(0.2)
            body = {"input": "hello the world " * 3, "voice": "alloy", "response_format": "pcm", "max_frames": 100}
            with httpx.stream("POST", f"{url}/v1/audio/speech", json=body, timeout=60) as answer:
                sound = answer.iter_raw()
                heard = len(next(sound))
                server.send_signal(signal.SIGTERM)
                heard += sum(map(len, sound))
            assert heard == 100 * 2 * 1920, "who was being spoken to hears the end"
            assert server.wait(90) == 0
        finally:
            server.kill()
            server.wait()
        for _ in range(100):
            if set(left()) <= set(before):
                break
            time.sleep(0.2)
        assert set(left()) <= set(before)


def test_what_cannot_be_is_told_before_ray_is_started() -> None:
    def said(*options: str) -> str:
        command = [sys.executable, "-m", "sonant.cli.main", "serve", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2, done.stderr
        return done.stderr

    assert "--port must be a number" in said("--replicas", "2", "--port", "0")
    assert "must be at least 1" in said("--replicas", "0", "--port", str(PORT))
    assert "max_replicas" in said("--replicas", "3", "--max-replicas", "2", "--port", str(PORT))
