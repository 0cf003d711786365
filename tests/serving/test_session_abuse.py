"""Sessions of clients that are hostile or broken are told so, bounded and ended, and the next one is served."""

from __future__ import annotations

import json
import logging
import socket
import struct
import time
from contextlib import suppress

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from serving.conftest import Serve, Served, wait_for
from serving.session_client import CONFIG, SIX, events, session, sound
from sonant.serving.api import speech_session

TEXT, BINARY, CLOSE, PING, CONTINUED, FIN = 0x1, 0x2, 0x8, 0x9, 0x0, 0x80


@pytest.fixture(scope="module")
def served(serve_once: Serve) -> Served:
    return serve_once("endless toy", engine=SIX, ws_idle_s=3.0, ws_max_message_bytes=200_000)


@pytest.fixture(autouse=True)
def still_serves(served: Served) -> object:
    yield
    wait_for(lambda: served.admission.sessions == 0, 10)
    with session(served) as client:
        client.say("session.config", **CONFIG)
        client.say("input.text", text="Hello.")
        client.say("input.done")
        assert sound(client.until("session.done"))
    wait_for(lambda: served.supervisor.engine.stats().running == 0)


def frame(opcode: int, data: bytes = b"", *, masked: bool = True, length: int | None = None) -> bytes:
    """A hand-made frame: libraries refuse to send wrong ones."""
    size = len(data) if length is None else length
    flag, mask = (0x80, bytes(4)) if masked else (0, b"")
    if size < 126:
        return bytes([opcode, flag | size]) + mask + data
    if size < 1 << 16:
        return bytes([opcode, flag | 126]) + struct.pack(">H", size) + mask + data
    return bytes([opcode, flag | 127]) + struct.pack(">Q", size) + mask + data


def opened(served: Served) -> socket.socket:
    sock = socket.create_connection(served.address, 20)
    sock.sendall(
        b"GET /v1/audio/speech/stream HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += sock.recv(1)
    assert head.startswith(b"HTTP/1.1 101")
    return sock


def close_code(sock: socket.socket) -> int:
    """Return the code of the close frame that must come; skip the short frames before it."""
    with sock.makefile("rb") as said:
        while True:
            opcode, length = said.read(2)
            if length == 126:
                (length,) = struct.unpack(">H", said.read(2))
            data = said.read(length)
            if opcode == FIN | CLOSE:
                return int(struct.unpack(">H", data[:2])[0])


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(FIN | TEXT, length=1 << 40), 1009),
        (frame(FIN | TEXT, length=(1 << 63) - 1), 1009),
        (frame(FIN | TEXT, b"x" * 300_000), 1009),
        (frame(TEXT, b"x" * 150_000) + frame(FIN | CONTINUED, b"x" * 150_000), 1009),
        (frame(FIN | TEXT, b"\xff\xfe"), 1007),
        (frame(FIN | TEXT, b"{}", masked=False), 1002),
        (frame(FIN | 0x3, b"{}"), 1002),
        (frame(FIN | 0x70 | TEXT, b"{}"), 1002),
        (frame(FIN | CONTINUED, b"{}"), 1002),
        (frame(PING, b"{}"), 1002),
        (frame(FIN | PING, b"x" * 200), 1002),
        (frame(FIN | CLOSE, b"\x00"), 1002),
        (frame(FIN | BINARY, b"{}"), 1008),
        (frame(FIN | TEXT, b""), 1008),
        (frame(FIN | TEXT, b"[" * 100_000), 1008),
        (frame(FIN | TEXT, b'{"type":"session.config",' + b'"a":1,' * 20_000 + b'"b":1}'), 1008),
        (frame(FIN | TEXT, b'{"type":"session.config","speaker_embedding":[' + b"1," * 90_000 + b"1]}"), 1008),
    ],
)
def test_a_first_frame_that_is_wrong_ends_it_with_the_right_code(served: Served, sent: bytes, code: int) -> None:
    with opened(served) as sock:
        sock.sendall(sent)
        assert close_code(sock) == code


def test_pieces_of_a_message_that_never_ends_are_given_up(served: Served) -> None:
    with opened(served) as sock:
        sock.sendall(frame(TEXT, b"{"))
        began = time.monotonic()
        while served.admission.sessions or time.monotonic() - began < 0.5:
            assert time.monotonic() - began < 6
            sock.sendall(frame(CONTINUED) * 50)
            time.sleep(0.02)
        assert close_code(sock) == 1000  # idle, since no message was ever complete


def test_pings_that_are_never_answered_for_do_not_pile_up(served: Served) -> None:
    """Each ping asks for a pong, which nobody reads: the server must stop reading instead of queueing more pongs."""
    with opened(served) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        sock.sendall(frame(FIN | TEXT, json.dumps({"type": "session.config", **CONFIG}).encode()))
        (connection,) = served.server.server_state.connections
        sock.setblocking(False)
        pings, sent, most = frame(FIN | PING, b"x" * 125) * 500, 0, 0
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            try:
                sent += sock.send(pings[sent % 131 :])  # resumes where the last send stopped
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:
                break
            most = max(most, connection.transport.get_write_buffer_size())
    assert sent > 200_000, "too few to mean anything"
    assert most < 1 << 20


def test_thousands_of_tiny_pieces_are_one_utterance(served: Served) -> None:
    text = "Hello the world, and again. " * 100
    with session(served) as client:
        client.say("session.config", **{**CONFIG, "max_frames": 2}, split_granularity="none")
        for char in text:
            client.say("input.text", text=char)
        client.say("input.done")
        told = events(client.until("session.done"))
    assert told[0]["sentence_text"] == text.strip()


def test_thousands_of_sentences_at_once_are_held_back_and_all_spoken(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speech_session, "MAX_WAITING_CHARS", 100)
    monkeypatch.setattr(speech_session, "MAX_QUEUED_UTTERANCES", 32)
    with session(served) as client:
        client.say("session.config", **CONFIG, split_granularity="sentence")
        client.say("input.text", text="Go on. " * 40)
        client.say("input.done")
        for _ in range(36):  # more utterances than may wait
            client.say("input.text", text="Hi.")
            client.say("input.done")
        told = [m for _ in range(37) for m in events(client.until("session.done")) if m["type"] == "session.done"]
    assert [m["utterance_index"] for m in told] == list(range(37))
    assert told[0]["total_sentences"] == 40


def test_a_client_that_writes_a_chapter_ahead_has_its_pings_answered(serve: Serve) -> None:
    """Clients send pings by default, and close the session if one is not answered."""
    served = serve("endless toy", engine=SIX)
    with session(served, ping_interval=0.2, ping_timeout=0.5) as client:
        client.say("session.config", **CONFIG, split_granularity="sentence")
        for _ in range(40):
            client.say("input.text", text="Hello the world. " * 50)
        client.say("input.done")
        until_s = time.monotonic() + 1.5
        while time.monotonic() < until_s:
            client.hear()
        client.say("session.close")


def test_who_is_held_back_or_slow_to_read_is_not_taken_for_gone(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speech_session, "MAX_QUEUED_UTTERANCES", 32)
    served = serve("endless toy", engine=SIX)
    config = served.server.config
    config.ws_ping_interval = 0.05
    if config.ws_ping_timeout is not None:  # shorter than the default, for a fast test
        config.ws_ping_timeout = 0.05
    with session(served, max_queue=1, ping_interval=None) as client:
        client.say("session.config", **CONFIG, split_granularity="sentence")
        for _ in range(40):  # more utterances than may wait: the rest, and any pong, is not read
            client.say("input.text", text="Hello the world. ")
            client.say("input.done")
        time.sleep(0.5)
        told = [m for _ in range(40) for m in events(client.until("session.done"))]
    assert [m["utterance_index"] for m in told if m["type"] == "session.done"] == list(range(40))


def test_who_wrote_far_ahead_and_hangs_up_is_no_error_of_ours(
    serve: Serve, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is read from a client that is held back, so only sending to it shows that it is gone."""
    monkeypatch.setattr(speech_session, "MAX_QUEUED_UTTERANCES", 32)
    served = serve("endless toy", engine=SIX)
    said = [{"type": "session.config", **CONFIG}]
    said += [{"type": "input.text", "text": "Hello the world. "}, {"type": "input.done"}] * 60
    with caplog.at_level(logging.INFO), opened(served) as sock:
        sock.sendall(b"".join(frame(FIN | TEXT, json.dumps(message).encode()) for message in said))
        sock.recv(1000)  # speech has begun
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        wait_for(lambda: not served.admission.sessions, 10)
        figures = httpx.get(f"{served.url}/metrics").text
    outcomes = {r.request["outcome"] for r in caplog.records if hasattr(r, "request")}
    assert "client_gone" in outcomes and "error" not in outcomes
    assert not [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert 'sonant_requests_total{outcome="error",route="stream"} 0.0' in figures
    assert 'sonant_aborted_total{reason="client_gone"} 1.0' in figures


def test_config_text_and_close_in_every_wrong_order(served: Served) -> None:
    with session(served) as client:
        client.say("session.config", **CONFIG)
        client.say("session.config", **CONFIG)  # the same again is no error
        client.say("input.done")
        client.say("input.done")
        client.say("input.text", text="Hello.")
        client.say("session.config", **CONFIG)
        client.say("session.close")
        with suppress(ConnectionClosed):  # the server may have closed by then, as it was told to
            client.say("input.text", text="more")
            client.say("session.close")
        heard = []
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                heard.append(client.hear())
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1000
    assert [m["code"] for m in events(heard) if m["type"] == "error"] == ["invalid_message"]


def test_handshakes_that_are_refused_say_why_in_json(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    served = serve("endless toy", engine=SIX, api_keys=("right",))
    url = served.url.replace("http", "ws")
    for path, headers, expected in (
        ("/v1/audio/speech/stream", {}, (401, "invalid_api_key")),
        ("/v1/audio/speech/stream", {"authorization": "Bearer " + "é" * 4000}, (401, "invalid_api_key")),
        ("/v1/audio/speech/stream", {"authorization": "Bearer " + "x" * 9000}, (400, "invalid_handshake")),
        ("/v1/audio/nothing", {"authorization": "Bearer right"}, (404, "not_found")),
        ("/health", {}, (404, "not_found")),
    ):
        with pytest.raises(InvalidStatus) as refused, connect(url + path, additional_headers=headers):
            pass
        response = refused.value.response
        assert (response.status_code, json.loads(response.body)["error"]["code"]) == expected
        assert response.headers["x-request-id"].startswith("req_")
    errors = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert not errors, "whoever is turned away is no error of ours"


def test_hanging_up_at_any_moment_frees_everything(served: Served) -> None:
    for n in range(12):
        with opened(served) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", n % 2, 0))  # reset, or a plain close
            config = {"type": "session.config", **CONFIG, "max_frames": 300}
            sock.sendall(frame(FIN | TEXT, json.dumps(config).encode()))
            sock.sendall(frame(FIN | TEXT, json.dumps({"type": "input.text", "text": "Hello the world. "}).encode()))
            time.sleep(0.01 * n)
    wait_for(lambda: served.supervisor.engine.stats().running + served.supervisor.engine.stats().waiting == 0)
