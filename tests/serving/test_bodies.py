"""Request bodies that never end: their memory is bounded, given back, and does not hinder other clients."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from starlette.requests import ClientDisconnect

from serving.conftest import Serve, Served, wait_for
from serving.process import resident_mib
from sonant.serving.api.json_body import JsonRequest
from sonant.serving.limits.bodies import FREE_BYTES, BodyBudget, BodyReader
from sonant.serving.refused import Refused

BODY = {"input": "hello", "voice": "alloy", "max_frames": 1, "response_format": "pcm"}
MIB = 1 << 20


def head(length: int, *, more: str = "", path: str = "/v1/audio/speech") -> bytes:
    lines = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{more}"
    return f"{lines}Content-Length: {length}\r\n\r\n".encode()


@contextmanager
def begun(served: Served, sent: bytes) -> Iterator[socket.socket]:
    with socket.create_connection(served.address, 20) as sock:
        sock.sendall(sent)
        yield sock


def status(sock: socket.socket) -> tuple[int, str]:
    """The status of an error response, and its code."""
    answer = b""
    while b"}}" not in answer:
        piece = sock.recv(1 << 16)
        assert piece, answer
        answer += piece
    first, _, body = answer.partition(b"\r\n\r\n")
    assert b"100 continue" not in first.lower()
    return int(first.split()[1]), json.loads(body)["error"]["code"]


@pytest.fixture(scope="module")
def served(serve_once: Serve) -> Served:
    return serve_once("endless toy", max_body_bytes=4 * MIB, max_bodies_bytes=8 * MIB)


def test_what_stalls_is_bounded_and_texts_are_spoken_meanwhile(served: Served) -> None:
    """Bodies of forty megabytes are announced, and four are held: one address may have half of the budget."""
    budget = served.server.service.bodies
    before_mib = resident_mib()
    with ExitStack() as stack:
        for _ in range(20):
            sock = stack.enter_context(begun(served, head(2 * MIB)))
            try:
                sock.sendall(bytes(2 * MIB - 10))
            except OSError:
                continue
        wait_for(lambda: budget.held_bytes == 4 * MIB)
        late = stack.enter_context(begun(served, head(2 * MIB)))
        assert status(late) == (503, "bodies_full")
        assert served.post(**BODY).status_code == 200
        assert resident_mib() - before_mib < 30
    wait_for(lambda: budget.held_bytes == 0)
    full = httpx.post(f"{served.url}/v1/audio/speech", content=json.dumps(BODY).encode() + b" " * MIB, headers=JSON)
    assert full.status_code == 200 and budget.held_bytes == 0
    assert 'sonant_rejected_total{reason="bodies_full"}' in httpx.get(f"{served.url}/metrics").text


JSON = {"content-type": "application/json"}


def test_who_is_told_to_come_again_is_told_when(served: Served) -> None:
    with begun(served, head(4 * MIB)), begun(served, head(4 * MIB)):
        wait_for(lambda: served.server.service.bodies.held_bytes > 0)
        answer = httpx.post(f"{served.url}/v1/audio/speech", content=bytes(4 * MIB), headers=JSON)
        assert answer.status_code == 503 and int(answer.headers["retry-after"]) >= 1
    wait_for(lambda: served.server.service.bodies.held_bytes == 0)


def test_a_body_of_no_stated_length_is_counted_as_it_comes(served: Served) -> None:
    budget = served.server.service.bodies
    chunk = b"%x\r\n" % MIB + bytes(MIB) + b"\r\n"
    start = head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    with begun(served, start + chunk + chunk):
        wait_for(lambda: budget.held_bytes >= 2 * MIB)
    wait_for(lambda: budget.held_bytes == 0)


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/audio/speech/batch"])
def test_a_body_that_is_too_large_from_its_first_bytes_on_is_a_request_like_any_other(
    serve: Serve, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    served = serve("toy", max_body_bytes=1000)
    with caplog.at_level(logging.INFO):
        answer = httpx.post(served.url + path, content=iter([b" " * 2000]), headers=JSON)
    assert answer.status_code == 413 and answer.json()["error"]["code"] == "body_too_large"
    wait_for(lambda: any(hasattr(record, "request") for record in caplog.records))
    (line,) = [record.request for record in caplog.records if hasattr(record, "request")]
    assert (line["id"], line["status"], line["outcome"]) == (answer.headers["x-request-id"], 413, "bad_request")
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("expect", ["", "Expect: 100-continue\r\n"], ids=["plain", "asks first"])
def test_the_body_of_a_refused_request_is_not_read(serve: Serve, expect: str) -> None:
    served = serve("endless toy", engine={"max_rows": 1, "max_waiting": 1})
    engine = served.supervisor.engine
    with ExitStack() as resources:
        resources.enter_context(engine.stream("hello the world", seed=1, max_frames=3000))
        wait_for(lambda: engine.stats().running == 1)
        resources.enter_context(engine.stream("hello the world", seed=2, max_frames=3000))
        with begun(served, head(MIB, more=expect)) as sock:  # the head, and not a byte of the body
            assert status(sock) == (429, "overloaded")
            if expect:
                assert sock.recv(100) == b"", "the next request would be taken for the body"
    assert served.server.service.bodies.held_bytes == 0


def test_rates_and_keys_are_asked_before_a_body_too(serve: Serve, tmp_path: Path) -> None:
    served = serve("base", max_requests_per_minute=1, voices_folder=tmp_path)
    assert served.post(input="").status_code == 400
    for path in ("/v1/audio/speech", "/v1/audio/voices"):
        with begun(served, head(MIB, path=path)) as sock:
            assert status(sock) == (429, "rate_limited")
    closed = serve("endless toy", api_keys=("k",))
    with begun(closed, head(MIB)) as sock:
        assert status(sock) == (401, "invalid_api_key")


def test_a_body_that_has_stopped_is_given_up_however_much_has_come(serve: Serve) -> None:
    served = serve("endless toy", receive_s=1.0)
    began = time.monotonic()
    with begun(served, head(8 * MIB) + bytes(2 * MIB)) as sock:
        assert status(sock) == (408, "request_timeout")
    assert time.monotonic() - began < 5
    wait_for(lambda: served.server.service.bodies.held_bytes == 0)


def test_the_budget_is_shared_and_forgets_whom_it_owes_nothing() -> None:
    turned_away: list[Refused] = []
    budget = BodyBudget(100, turned_away.append)
    budget.take("a", 50)
    with pytest.raises(Refused):
        budget.take("a", 10)
    budget.take("b", 50)
    with pytest.raises(Refused, match="try again soon"):
        budget.take("c", 1)
    assert len(turned_away) == 2
    budget.give_back("b", 50)
    budget.give_back("a", 50)
    assert budget.held_bytes == 0 and not budget._by_client
    budget.take("a", 1000)  # a single body is bounded by an option of its own


def test_a_small_body_needs_no_budget_and_asks_nobody() -> None:
    def not_asked(*_: object) -> None:
        raise AssertionError("asked")

    async def receive() -> dict[str, object]:
        return {}

    reader = BodyReader(receive, BodyBudget(1, not_asked), "a", FREE_BYTES, not_asked)  # type: ignore[arg-type]
    asyncio.run(reader.expect(FREE_BYTES))
    assert reader.budget.held_bytes == 0


def test_what_came_of_a_body_is_let_go_with_it() -> None:
    """An error's traceback keeps the frames that it passed through, and so could keep all that had been read."""
    chunk = bytes(1000)
    arriving = [{"type": "http.request", "body": body, "more_body": True} for body in (chunk, b"the last")]
    arriving.append({"type": "http.disconnect"})

    async def receive() -> dict[str, object]:
        return arriving.pop(0)

    held = sys.getrefcount(chunk)
    with pytest.raises(ClientDisconnect) as kept:
        asyncio.run(JsonRequest({"type": "http", "headers": []}, receive).json())
    assert kept.value.__traceback__ is not None and sys.getrefcount(chunk) == held - 1  # one was the message's own
