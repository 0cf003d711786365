"""Connections that are slow, silent, broken or endless: each is bounded, and nobody else notices."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from serving.conftest import Serve, Served, wait_for

SPEECH = {"input": "hello the world", "voice": "alloy", "seed": 5, "response_format": "wav"}
linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's limit on unread data is Linux's")


@pytest.fixture(scope="module")
def served(serve_once: Serve) -> Served:
    return serve_once("endless toy", receive_s=1.0, unread_s=1.0)


@contextmanager
def raw(served: Served, sent: bytes = b"", **options: Any) -> Iterator[socket.socket]:
    with socket.create_connection(served.address, 20, **options) as sock:
        sock.sendall(sent)
        yield sock


def request(body: dict[str, Any], *, length: int | None = None) -> bytes:
    data = json.dumps(body).encode()
    head = "POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data) if length is None else length}\r\n\r\n".encode() + data


def to_the_end(sock: socket.socket) -> bytes:
    """Return all that the server sends until it closes, in whichever way."""
    said = b""
    try:
        while piece := sock.recv(1 << 16):
            said += piece
    except ConnectionResetError:
        pass
    return said


def refusal(said: bytes) -> tuple[int, str]:
    """Return the status and code of an error in our own shape, which must have a request id."""
    head, _, body = said.partition(b"\r\n\r\n")
    assert b"x-request-id: req_" in head.lower(), head
    error = json.loads(body)["error"]
    assert error["message"] and error["type"]
    return int(head.split()[1]), error["code"]


UNFINISHED = {
    "half a head": b"GET /health HTTP/1.1\r\nHost: x\r\n",
    "half a line": b"GET /hea",
    "no line": b"\r\n",
    "half a body": request(SPEECH, length=10_000),
    "half a chunk": b"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
    "no body": b"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n",
}


def test_a_request_that_stops_coming_is_given_up(served: Served) -> None:
    """All cases at once, so that they share the wait. A client that sends nothing at all is only hung up on."""
    ended: dict[str, tuple[float, bytes]] = {}

    def wait(name: str, sent: bytes) -> None:
        began = time.monotonic()
        with raw(served, sent) as sock:
            said = to_the_end(sock).removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
        ended[name] = time.monotonic() - began, said

    cases = UNFINISHED | {"nothing": b""}
    threads = [threading.Thread(target=wait, args=case) for case in cases.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert ended.keys() == cases.keys()
    for name, (took_s, said) in ended.items():
        assert 0.9 < took_s < 4, name
        assert said == b"" if name == "nothing" else refusal(said) == (408, "request_timeout"), name


def test_dripping_bytes_buy_no_time(served: Served) -> None:
    began = time.monotonic()
    with raw(served, b"GET /health HTTP/1.1\r\n") as sock, pytest.raises(OSError):
        while time.monotonic() - began < 10:
            sock.sendall(b"x: y\r\n")
            time.sleep(0.05)
    assert time.monotonic() - began < 4


def test_empty_lines_between_requests_buy_no_time(served: Served) -> None:
    with raw(served, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n") as sock:
        assert sock.recv(1 << 16).startswith(b"HTTP/1.1 200")
        sock.sendall(b"\r\n")
        began = time.monotonic()
        assert refusal(to_the_end(sock)) == (408, "request_timeout")
    assert time.monotonic() - began < 4


def test_a_large_body_that_keeps_coming_is_waited_for(served: Served) -> None:
    filler, pieces = b" " * (64 << 10), 15  # 1.5 s at this pace, longer than an empty request would get
    body = json.dumps({**SPEECH, "max_frames": 2}).encode()
    head = "POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    with raw(served, f"{head}Content-Length: {len(body) + pieces * len(filler)}\r\n\r\n".encode()) as sock:
        for _ in range(pieces):
            time.sleep(0.1)
            sock.sendall(filler)
        sock.sendall(body)
        assert to_the_end(sock).startswith(b"HTTP/1.1 200")


def test_an_answer_that_takes_longer_than_a_request_may_is_not_cut(served: Served) -> None:
    with raw(served, request({**SPEECH, "max_frames": 100}) + b"\r\n") as sock:  # a stray line restarts the timeout
        began, said = time.monotonic(), b""
        while not said.endswith(b"0\r\n\r\n"):
            piece = sock.recv(1 << 12)
            assert piece, "cut off"
            said += piece
            time.sleep(0.03)  # about as fast as it plays
    assert time.monotonic() - began > 1.5 and said.count(b"RIFF") == 1


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100), (400, "invalid_http")),
        (b"GARBAGE\r\n\r\n", (400, "invalid_http")),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", (400, "invalid_http")),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", (400, "invalid_http")),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", (400, "invalid_http")),
        (b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", (400, "invalid_http")),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", (431, "head_too_large")),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 40_000 + b"\r\n", (431, "head_too_large")),
    ],
    ids=["TLS", "garbage", "no colon", "negative", "overflow", "smuggling", "long line", "many headers"],
)
def test_what_is_not_http_gets_error_json_and_is_closed(served: Served, sent: bytes, expected: tuple[int, str]) -> None:
    with raw(served, sent) as sock:
        assert refusal(to_the_end(sock)) == expected


@pytest.mark.parametrize(
    "begin",
    [
        b"GET / HTTP/1.1\r\nx: ",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;x=",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nx: ",
    ],
    ids=["header", "chunk extension", "trailer"],
)
def test_what_never_ends_is_not_kept(served: Served, begin: bytes) -> None:
    sent = 0
    with raw(served, begin) as sock, pytest.raises(OSError):
        for _ in range(64):
            sock.sendall(b"y" * (1 << 16))
            sent += 1 << 16
            time.sleep(0.005)
    assert sent < 4 << 20


def test_silent_connections_keep_nobody_out_and_are_given_back(served: Served) -> None:
    with ExitStack() as stack:
        idle = [stack.enter_context(raw(served, b"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\n")) for _ in range(200)]
        began = time.monotonic()
        assert httpx.get(f"{served.url}/health").status_code == 200
        assert time.monotonic() - began < 1
        for sock in idle:
            assert refusal(to_the_end(sock)) == (408, "request_timeout")
    wait_for(lambda: not served.server.server_state.connections)


@linux
def test_who_never_reads_is_cut_off_and_leaves_nothing(served: Served) -> None:
    """The sound exceeds all buffers on the way. Its row is free once the speech is made, its place once the client is
    gone."""
    long = request({**SPEECH, "max_frames": 500, "sample_rate": 48000})
    with ExitStack() as stack:
        for _ in range(3):
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(served.address)
            sock.sendall(long)
        wait_for(lambda: served.server.service.in_flight.running == 3)
        wait_for(lambda: served.server.service.in_flight.running == 0, 30)
        wait_for(lambda: not served.server.server_state.connections)
        wait_for(lambda: not served.admission.active)
        wait_for(lambda: served.supervisor.engine.stats().running == 0)  # an abort takes a step


@linux
def test_a_session_that_never_reads_is_cut_off_and_leaves_nothing(served: Served) -> None:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(served.address)
    url = served.url.replace("http", "ws") + "/v1/audio/speech/stream"
    with connect(url, sock=sock, compression=None, max_queue=1, close_timeout=0.1) as session:
        config = {**SPEECH, "type": "session.config", "max_frames": 400, "sample_rate": 48000, "stream_audio": True}
        del config["input"]
        session.send(json.dumps(config))
        session.send(json.dumps({"type": "input.text", "text": "Hello the world. And again it is spoken. "}))
        session.send(json.dumps({"type": "input.done"}))
        wait_for(lambda: served.server.service.in_flight.running == 1)
        wait_for(lambda: served.server.service.in_flight.running == 0, 30)
        wait_for(lambda: not served.server.server_state.connections)
    wait_for(lambda: served.admission.sessions == 0)
    wait_for(lambda: served.supervisor.engine.stats().running == 0)


def test_pipelined_requests_are_answered_in_turn(served: Served) -> None:
    body = json.dumps({**SPEECH, "max_frames": 2}).encode()
    head = "POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    one = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    last = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with raw(served, one * 3 + last) as sock:
        said = to_the_end(sock)
    assert said.count(b"HTTP/1.1 200") == 4 and said.count(b"RIFF") == 3 and said.endswith(b'{"status":"ok"}')
