"""One line for each request says what an operator wants to know, and nothing of what the client had spoken."""

from __future__ import annotations

import json
import logging
import re
import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from serving.conftest import Serve, Served, break_engine, wait_for
from serving.session_client import CONFIG, session
from sonant.serving.observability.log_format import JsonFormatter, TextFormatter
from sonant.serving.observability.request_log import RequestRecord
from sonant.serving.options import ServeOptions
from sonant.serving.server import server_for

SECRET = "the quick brown fox"
BODY = {"input": SECRET, "voice": "alloy", "max_frames": 4, "response_format": "pcm"}


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(("sonant", "uvicorn")):  # other loggers are those of the test's own clients
            self.records.append(record)

    @property
    def requests(self) -> list[dict[str, Any]]:
        return [r.request for r in self.records if hasattr(r, "request") and r.levelno >= logging.INFO]

    def last(self, count: int = 1) -> dict[str, Any]:
        wait_for(lambda: len(self.requests) >= count)
        return self.requests[-1]

    def texts(self) -> str:
        forms = (TextFormatter(), JsonFormatter())
        return "\n".join(form.format(r) for r in self.records for form in forms)


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, root = Lines(), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    uvicorn = logging.getLogger("uvicorn")  # Another test's server may have switched propagation off.
    kept, uvicorn.propagate = uvicorn.propagate, True
    yield handler
    uvicorn.propagate = kept
    root.setLevel(level)
    root.removeHandler(handler)


@pytest.fixture(scope="module")
def served(serve_once: Serve) -> Served:
    return serve_once("custom")


@pytest.fixture(scope="module")
def endless(serve_once: Serve) -> Served:
    return serve_once("endless toy")


def test_speech_is_a_line_with_all_there_is_to_know(served: Served, lines: Lines) -> None:
    answer = served.post(**BODY, seed=1)
    line = lines.last()
    assert line["id"] == answer.headers["x-request-id"] and line["client"] == "address:127.0.0.1"
    assert (line["route"], line["status"], line["voice"]) == ("POST /v1/audio/speech", 200, "alloy")
    assert line["characters"] == len(SECRET) and line["outcome"] in ("stop", "length")
    assert 0 < line["first_sound_s"] <= line["seconds"] and line["audio_s"] == pytest.approx(0.32)
    assert line["rtf"] == pytest.approx(line["seconds"] / line["audio_s"], rel=0.1)
    assert len(lines.requests) == 1 and SECRET not in lines.texts()


@pytest.mark.parametrize(
    ("body", "status", "outcome"),
    [
        ({"input": 5}, 400, "bad_request"),
        ({"input": "..."}, 400, "bad_request"),
        ({"input": SECRET, "voice": SECRET}, 400, "bad_request"),
        ({"input": SECRET, "ref_audio": "AAAA"}, 400, "bad_request"),
    ],
)
def test_a_clients_fault_is_a_line_and_no_traceback(
    served: Served, lines: Lines, body: dict[str, Any], status: int, outcome: str
) -> None:
    served.post(**body)
    line = lines.last()
    assert (line["status"], line["outcome"]) == (status, outcome) and "voice" not in line
    assert not [r for r in lines.records if r.exc_info or r.levelno >= logging.ERROR] and SECRET not in lines.texts()


def break_off(served: Served, lines: Lines, **how: Any) -> None:
    """Ask for speech, and break the engine after its first sound."""
    with pytest.raises(httpx.HTTPError), httpx.stream("POST", f"{served.url}/v1/audio/speech", **how) as response:
        pieces = response.iter_raw(100)
        next(pieces)
        break_engine(served.supervisor.engine)
        for _ in pieces:
            pass
    assert lines.last()["outcome"] == "error"
    wait_for(lambda: any("broken off" in r.getMessage() for r in lines.records))


def test_streams_that_an_engines_failure_broke_off_are_lines_and_no_tracebacks(serve: Serve, lines: Lines) -> None:
    served = serve("endless toy")
    break_off(served, lines, json={**BODY, "max_frames": 3000})
    assert not [r for r in lines.records if r.exc_info and r.name.startswith("uvicorn")]


def test_nor_are_those_that_were_asked_for_in_a_large_body(serve: Serve, lines: Lines) -> None:
    """Such as one with a clip, or a chapter: it comes by another way."""
    served, body = serve("endless toy"), json.dumps({**BODY, "max_frames": 3000}) + " " * 20_000
    how: dict[str, Any] = {"content": body, "headers": {"content-type": "application/json"}}
    break_off(served, lines, **how)
    told = [r.getMessage() for r in lines.records if r.name.startswith(("uvicorn", "sonant.serving.api"))]
    assert [text for text in told if "failed" in text and "broken off" not in text] == []


def test_probes_and_the_pages_files_are_left_out(served: Served, lines: Lines) -> None:
    for path in ("/health", "/ready", "/metrics", "/v1/engine/stats", "/page/app.js"):
        httpx.get(served.url + path)
    httpx.get(f"{served.url}/v1/models?api_key=secret")
    assert lines.last()["route"] == "GET /v1/models" and len(lines.requests) == 1
    httpx.get(f"{served.url}/nothing/{'x' * 500}?api_key=secret")
    assert len(lines.last(2)["route"]) < 120 and lines.last(2)["status"] == 404
    assert "secret" not in lines.texts()


def test_a_key_is_shown_by_its_mark(serve: Serve, lines: Lines) -> None:
    served = serve("custom", api_keys=("secret-key",))
    httpx.get(f"{served.url}/v1/models", headers={"authorization": "Bearer secret-key"})
    assert re.fullmatch(r"key:[0-9a-f]{12}", lines.last()["client"])
    httpx.get(f"{served.url}/v1/models", headers={"authorization": "Bearer wrong-key"})
    assert lines.last(2)["status"] == 401
    assert "secret-key" not in lines.texts() and "wrong-key" not in lines.texts()


def test_who_hangs_up_is_told_apart_and_is_no_error(endless: Served, lines: Lines) -> None:
    long = {**BODY, "max_frames": 3000}
    with httpx.stream("POST", f"{endless.url}/v1/audio/speech", json=long) as response:
        next(response.iter_raw(100))
    assert lines.last()["outcome"] == "client_gone" and lines.last()["first_sound_s"] > 0
    for body in (b'{"input": "the quick', b"--x\r\nthe quick"):  # hanging up in the middle of a body, too
        kind = "application/json" if body.startswith(b"{") else "multipart/form-data; boundary=x"
        head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: 99999\r\n\r\n"
        with socket.create_connection(endless.address) as sock:
            sock.sendall(head.encode() + body)
            time.sleep(0.05)
    wait_for(lambda: len(lines.requests) == 3)
    assert [line["outcome"] for line in lines.requests] == ["client_gone"] * 3
    assert not [r for r in lines.records if r.exc_info or r.levelno >= logging.WARNING], lines.texts()
    assert SECRET not in lines.texts()


def test_a_batch_and_a_sessions_utterances_are_lines(served: Served, lines: Lines) -> None:
    items = [{"input": "hello"}, {"input": "hello the world", "voice": "nobody"}]
    httpx.post(f"{served.url}/v1/audio/speech/batch", json={"items": items, "voice": "alloy", "max_frames": 2})
    batch = lines.last()
    assert (batch["characters"], batch["outcome"], batch["voice"]) == (20, "stop", "alloy") and batch["audio_s"] > 0
    with session(served) as client:
        client.say("session.config", **CONFIG)
        for _ in range(2):
            client.say("input.text", text=SECRET)
            client.say("input.done")
            client.until("session.done")
        client.say("session.close")
        client.closed()
    wait_for(lambda: len(lines.requests) == 4)
    first, second, whole = lines.requests[1:]
    assert first["id"] == f"{whole['id']}/0" and second["id"] == f"{whole['id']}/1"
    assert first["route"] == whole["route"] == "WS /v1/audio/speech/stream" and whole["status"] == 101
    assert first["characters"] == len(SECRET) and first["voice"] == "alloy" and first["first_sound_s"] > 0
    assert first["outcome"] in ("stop", "length") and whole["outcome"] == "ok"
    assert SECRET not in lines.texts() and "WebSocket" not in lines.texts()


def test_our_own_failure_is_an_error(serve: Serve, lines: Lines) -> None:
    served = serve("endless toy")
    break_engine(served.supervisor.engine)
    assert served.post(**BODY).status_code == 503
    assert lines.last()["outcome"] == "error"


def formatted(form: logging.Formatter, **facts: object) -> str:
    record = logging.LogRecord("sonant.requests", logging.INFO, "", 0, "request", (), None)
    record.request = facts
    return form.format(record)


def test_both_forms_are_one_line_whatever_is_in_them() -> None:
    facts = {"id": "a", "voice": 'x"\n\x1b[31m=y z', "seconds": 0.5}
    text = formatted(TextFormatter(), **facts)
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z request id=a voice=\"", text)
    assert text.endswith(" seconds=0.5") and "\n" not in text and "\x1b" not in text
    line = json.loads(formatted(JsonFormatter(), **facts))
    assert line["voice"] == facts["voice"] and line["level"] == "info" and line["time"].endswith("Z")
    other = logging.LogRecord("a.b", logging.WARNING, "", 0, "%s went\nwrong", ("it",), None)
    assert json.loads(JsonFormatter().format(other))["message"] == "it went\nwrong"
    text = TextFormatter("%(levelname)s: %(name)s: %(message)s").format(other)
    assert text.partition(" ")[2].startswith("WARNING: a.b: it went")


def test_a_record_that_nobody_filled_says_what_its_status_does() -> None:
    known = {200: "ok", 101: "ok", 404: "bad_request", 429: "refused", 503: "refused", 500: "error"}
    for status, outcome in known.items():
        record = RequestRecord("a", "b", "c", status=status)
        record.ended()
        assert record.outcome == outcome
    gone = RequestRecord("a", "b", "c")
    gone.ended()
    assert gone.outcome == "client_gone"


def test_even_the_most_detailed_log_shows_nothing_that_is_said() -> None:
    """At the level of debug the WebSocket library, which uses uvicorn's logger, would log messages."""
    app = SimpleNamespace(state=SimpleNamespace(service=None))
    server_for(app, ServeOptions(log_level="debug"))  # type: ignore[arg-type]
    assert not logging.getLogger("uvicorn.error").isEnabledFor(logging.DEBUG)
