"""A real process that is told to stop: running speech is heard to its end, and the process ends in time."""

from __future__ import annotations

import json
import logging
import signal
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from serving.conftest import Serve, wait_for
from serving.process import Run, server_processes
from serving.session_client import CONFIG, session

LONG = {"input": "hello the world", "voice": "alloy", "seed": 5, "max_frames": 80, "response_format": "pcm"}


@pytest.fixture
def start(checkpoints: Mapping[str, Path]) -> Iterator[Run]:
    """`start("--drain", "5")` → a server whose speech lasts as long as it is asked to."""
    with server_processes() as run:
        yield lambda *options: run(checkpoints["endless"], *options)


def heard_to_the_end(session: ClientConnection) -> tuple[int, int]:
    """Return the bytes of sound, and the close code."""
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
        talking.recv(20)  # audio.start
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
            talking.send(json.dumps({"type": "input.done"}))  # an utterance that has begun may be completed
            assert heard_to_the_end(talking) == (80 * 2 * 1920, 1012)
            size += sum(map(len, pieces))
    assert size == 80 * 2 * 1920  # whole, and ended cleanly
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


def test_who_has_heard_nothing_when_the_time_is_over_gets_an_error_like_any_other(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve("endless", drain_s=0.3)
    text = {"input": "hello the world", "voice": "alloy", "max_frames": 3000}
    with caplog.at_level(logging.INFO), ThreadPoolExecutor(2) as clients, session(served) as talking:
        talking.say("session.config", **CONFIG, max_frames=3000)
        talking.say("input.text", text="Hello the world. ")
        whole = clients.submit(served.post, **text, stream=False)
        items = {"items": [text, text]}
        batch = clients.submit(httpx.post, f"{served.url}/v1/audio/speech/batch", json=items, timeout=60)
        wait_for(lambda: served.server.service.in_flight.running == 3)
        served.server.handle_exit(signal.SIGTERM, None)
        for answer in (whole.result(), batch.result()):
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_unavailable")
            assert answer.headers["x-request-id"] and answer.headers["retry-after"]
        assert talking.closed() == 1012
        wait_for(lambda: served.server.should_exit and not served.server.server_state.tasks)
    requests = [r.request for r in caplog.records if hasattr(r, "request")]
    assert [facts["outcome"] for facts in requests] == ["shutdown"] * 4  # the session and its utterance too
    assert not [r.getMessage() for r in caplog.records if r.exc_info]


def test_an_idle_server_ends_at_once(start: Run) -> None:
    process, _ = start()
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(15) == 0 and time.monotonic() - began < 10
