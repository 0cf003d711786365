"""A real process, told to stop: whoever is being spoken to hears the end, and it ends in time."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from serving.process import Run, server_processes

LONG = {"input": "hello the world", "voice": "alloy", "seed": 5, "max_frames": 80, "response_format": "pcm"}


@pytest.fixture
def start(checkpoints: Mapping[str, Path]) -> Iterator[Run]:
    """`start("--drain", "5")` → a server that speaks for as long as it is asked to."""
    with server_processes() as run:
        yield lambda *options: run(checkpoints["endless"], *options)


def heard_to_the_end(session: ClientConnection) -> tuple[int, int]:
    """Bytes of sound, and the close code."""
    size = 0
    try:
        while True:
            message = session.recv(60)
            size += len(message) if isinstance(message, bytes) else 0
    except ConnectionClosed as e:
        assert e.rcvd is not None
        return size, e.rcvd.code


def test_a_drain_lets_speech_end_and_takes_no_more(start: Run) -> None:
    process, url = start("--drain", "60")
    sessions = url.replace("http", "ws") + "/v1/audio/speech/stream"
    with connect(sessions) as idle, connect(sessions) as talking:
        idle.send(json.dumps({"type": "session.config"}))
        config = {**LONG, "type": "session.config"}
        del config["input"]
        for message in (config, {"type": "input.text", "text": "Hello the world. "}):
            talking.send(json.dumps(message))
        talking.recv(20)  # its audio.start
        with httpx.stream("POST", f"{url}/v1/audio/speech", json=LONG, timeout=60) as response:
            pieces = response.iter_raw()
            size = len(next(pieces))
            process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + 10
            while httpx.get(f"{url}/ready").status_code != 503:
                assert time.monotonic() < deadline
            refused = httpx.post(f"{url}/v1/audio/speech", json=LONG)
            assert refused.status_code == 503 and refused.headers["retry-after"]
            batch = httpx.post(f"{url}/v1/audio/speech/batch", json={"items": [{"input": "hello"}]})
            assert batch.status_code == 503 and httpx.get(f"{url}/health").status_code == 200
            assert heard_to_the_end(idle) == (0, 1012)
            talking.send(json.dumps({"type": "input.done"}))  # what has begun may be ended
            assert heard_to_the_end(talking) == (80 * 2 * 1920, 1012)
            size += sum(map(len, pieces))
    assert size == 80 * 2 * 1920  # to the last sample, and ended cleanly
    assert process.wait(15) == 0


@pytest.mark.parametrize("how", ["limit", "second signal"])
def test_what_does_not_end_is_cut_off_and_not_taken_for_whole(start: Run, how: str) -> None:
    process, url = start("--drain", "0.5" if how == "limit" else "60")
    with (
        pytest.raises(httpx.TransportError),
        httpx.stream("POST", f"{url}/v1/audio/speech", json={**LONG, "max_frames": 3000}, timeout=60) as response,
    ):
        pieces = response.iter_raw()
        next(pieces)
        process.send_signal(signal.SIGTERM)
        if how == "second signal":
            time.sleep(0.3)
            process.send_signal(signal.SIGTERM)
        list(pieces)
    assert process.wait(15) == 0


def test_an_idle_server_ends_at_once(start: Run) -> None:
    process, _ = start()
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(15) == 0 and time.monotonic() - began < 10
