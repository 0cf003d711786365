"""The short way of a speech request: which requests take it, that all others go the long way whole, and that both ways
answer alike.

And waiting for a client to leave while work goes on: the work ends, the client leaves, or the server stops.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx
import pytest
from starlette.responses import Response

from serving.conftest import Serve, Served
from serving.same_sound import same_sound
from sonant.serving.api.schemas import SpeechBody
from sonant.serving.api.speech_response import PATH, ShortWay, until_gone
from sonant.serving.limits.connection import HeadWithBody
from sonant.serving.refused import Refused

GOOD = json.dumps({"input": "hello the world", "voice": "alloy"}).encode()
JSON = [(b"host", b"x"), (b"content-type", b"application/json")]


class Ways:
    """Records which way each request took, and what arrived there."""

    def __init__(self) -> None:
        self.short: list[str] = []
        self.long: list[bytes] = []

    def answer(self, body: SpeechBody, state: Mapping[str, Any]) -> Response:
        if body.model == "nobody's":
            raise Refused(404, "model_not_found", "no such model")
        self.short.append(body.input)
        return Response(b"short")

    async def app(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Any) -> None:
        whole = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return self.long.append(b"gone")
            whole += message["body"]
            if not message["more_body"]:
                return self.long.append(whole)

    def take(self, *pieces: bytes | None, headers: Any = JSON, path: str = PATH, method: str = "POST") -> None:
        """Send a request in pieces; None: the client leaves there."""
        last = len(pieces) - 1
        messages: list[dict[str, Any]] = [
            {"type": "http.disconnect"} if p is None else {"type": "http.request", "body": p, "more_body": n < last}
            for n, p in enumerate(pieces)
        ]

        async def receive() -> Any:
            return messages.pop(0)

        async def send(message: Any) -> None: ...

        scope = {"type": "http", "method": method, "path": path, "headers": headers, "state": {}}
        asyncio.run(ShortWay(self.app, self.answer)(scope, receive, send))


def test_a_plain_request_takes_the_short_way() -> None:
    ways = Ways()
    ways.take(GOOD)
    ways.take(GOOD, headers=[(b"content-type", b"application/json; charset=utf-8")])
    assert ways.short == ["hello the world"] * 2 and ways.long == []


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"input": 5}', b'{"input": "a", "unknown": 1}',
        b'{"input": "a", "voice": "b", "model": "nobody\'s"}', b"[" * 5000, b'{"input": ' + b"9" * 5000 + b"}",
        json.dumps({"input": "a", "voice": "x" * 20_000}).encode(),
    ],
)  # fmt: skip
def test_what_is_wrong_or_large_goes_the_long_way_whole(raw: bytes) -> None:
    ways = Ways()
    ways.take(raw)
    assert ways.long == [raw] and ways.short == []


def test_what_comes_in_pieces_or_not_at_all_goes_the_long_way() -> None:
    ways = Ways()
    ways.take(GOOD[:9], GOOD[9:])
    ways.take(None)
    ways.take(GOOD[:9], None)
    assert ways.long == [GOOD, b"gone", b"gone"] and ways.short == []


@pytest.mark.parametrize(
    "other",
    [
        {"path": "/v1/audio/speech/"}, {"path": "/v1/audio/speech/batch"}, {"method": "PUT"}, {"headers": []},
        {"headers": [(b"content-type", b"text/plain")]}, {"headers": [*JSON, (b"content-type", b"text/plain")]},
    ],
)  # fmt: skip
def test_other_requests_go_the_long_way(other: dict[str, Any]) -> None:
    ways = Ways()
    ways.take(GOOD, **other)
    assert ways.long == [GOOD] and ways.short == []


@pytest.fixture(scope="module")
def served(serve_once: Serve) -> Served:
    return serve_once()


def test_both_ways_answer_alike(served: Served) -> None:
    """`application/vnd.x+json` is JSON too, and only the long way reads it."""
    bodies: list[dict[str, Any]] = [
        {"input": "hello the world", "voice": "alloy", "seed": 5, "max_frames": 6, "response_format": "pcm"},
        {"input": "hello", "seed": 5, "max_frames": 4, "response_format": "wav", "stream": False},
        {"input": "hello", "seed": 5, "max_frames": 4, "response_format": "pcm", "stream_format": "sse"},
        {"input": "hello", "voice": "nobody at all"},
        {"input": ""},
        {"input": "hello", "language": "Klingon"},
    ]
    for body in bodies:
        answers = [
            httpx.post(
                f"{served.url}/v1/audio/speech", content=json.dumps(body), headers={"content-type": kind}, timeout=30
            )
            for kind in ("application/json", "application/vnd.x+json")
        ]
        short, long = ({k: v for k, v in a.headers.items() if k not in ("date", "x-request-id")} for a in answers)
        assert short == long and answers[0].status_code == answers[1].status_code
        if body.get("stream_format") == "sse":  # chunks depend on timing; the last event sums up all
            assert answers[0].text.split()[-1] == answers[1].text.split()[-1] != ""
        else:
            heard = [answer.content for answer in answers]
            assert heard[0] == heard[1] or (answers[0].status_code == 200 and same_sound(*heard))


async def never() -> Any:
    await asyncio.Event().wait()


def test_work_that_ends_or_fails_is_told_so() -> None:
    async def fails() -> None:
        raise ValueError("as it was")

    async def main() -> None:
        assert await until_gone(asyncio.sleep(0), never)
        with pytest.raises(ValueError, match="as it was"):
            await until_gone(fails(), never)
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_a_client_that_leaves_ends_the_work_and_nothing_else() -> None:
    async def main() -> None:
        ended = list[str]()

        async def work() -> None:
            try:
                await asyncio.sleep(30)
            finally:
                await asyncio.sleep(0)  # its cleaning up may await something
                ended.append("cleared up")

        async def leaves() -> Any:
            await asyncio.sleep(0.01)
            return {"type": "http.disconnect"}

        assert not await until_gone(work(), leaves)
        assert ended == ["cleared up"]
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0
        await asyncio.sleep(0.01)  # this task is not cancelled

    asyncio.run(main())


def test_a_server_that_stops_is_not_taken_for_a_client_that_left() -> None:
    async def main() -> None:
        task = asyncio.create_task(until_gone(asyncio.sleep(30), never))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


class Transport:
    """Records what is written to the kernel, each write by itself."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def writelines(self, pieces: Any) -> None:
        self.sent.append(b"".join(pieces))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def get_extra_info(self, name: str) -> Any: ...
    def pause_reading(self) -> None:
        self.sent.append(b"paused")


def test_a_head_leaves_with_its_first_sound_or_alone_at_the_next_turn() -> None:
    async def main() -> None:
        inner: Any = Transport()
        transport = HeadWithBody(inner, asyncio.get_running_loop())
        transport.write(b"HTTP/1.1 200 OK\r\n\r\n")
        assert inner.sent == []
        transport.write(b"4\r\nabcd\r\n")
        transport.write(b"0\r\n\r\n")
        assert inner.sent == [b"HTTP/1.1 200 OK\r\n\r\n4\r\nabcd\r\n", b"0\r\n\r\n"]
        await asyncio.sleep(0)
        assert len(inner.sent) == 2
        transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await asyncio.sleep(0)
        assert inner.sent[2:] == [b"HTTP/1.1 100 Continue\r\n\r\n"]
        transport.pause_reading()
        transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        transport.close()
        assert inner.sent[3:] == [b"paused", b"HTTP/1.1 204 No Content\r\n\r\n"] and inner.closed
        transport._head = b"HTTP/1.1 200 OK\r\n\r\n"  # the head of a connection that was lost meanwhile
        transport._send_head()
        assert len(inner.sent) == 5

    asyncio.run(main())
