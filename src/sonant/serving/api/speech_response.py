"""`POST /v1/audio/speech`: nothing is sent before there is sound, and no incomplete body ends cleanly.

Up to the first sound any failure is a proper error response. After it, a failure breaks the connection off, because
a body that ends cleanly would pass for a complete utterance. A client that hangs up frees its row at once.

Nearly every request is a small, valid JSON body. `ShortWay` answers it without FastAPI's routing, dependencies and exit
stacks, which are a fifth of what a request costs. Any other goes through FastAPI from its first byte on, so that there
is one place where requests are refused, and one where the API is described.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import ExitStack
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sonant.engine.stream import SpeechStream
from sonant.errors import EngineError, SonantError, TooLate
from sonant.serving.api.error_responses import outcome_of, response_for
from sonant.serving.api.json_body import JsonRoute, parsed
from sonant.serving.api.schemas import SpeechBody
from sonant.serving.audio_pipeline import AudioPipeline, check_complete
from sonant.serving.encode import CONTENT_TYPES
from sonant.serving.observability.metrics import Metrics
from sonant.serving.observability.request_log import RequestRecord
from sonant.serving.service import SpeechService

PATH = "/v1/audio/speech"
_JSON = frozenset({b"application/json", b"application/json; charset=utf-8"})
_SHORT_BYTES = 16 << 10  # a longer body may hold a clip, and comes in pieces

Open = Callable[[ExitStack], Awaitable[tuple[SpeechStream, AudioPipeline]]]
Answer = Callable[[SpeechBody, dict[str, Any]], Response]  # from the body and the request's state


def speech_routes(answer: Answer) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)
    kinds = (*CONTENT_TYPES.values(), "text/event-stream")
    sound: dict[int | str, dict[str, Any]] = {200: {"content": {kind: {} for kind in kinds}, "description": "Sound"}}

    @router.post(PATH, response_class=Response, responses=sound)
    async def speech(body: SpeechBody, request: Request) -> Response:
        return answer(body, request.scope["state"])

    return router


def speech_answer(service: SpeechService) -> Answer:
    """Return a function that answers a valid body."""

    def answer(body: SpeechBody, state: dict[str, Any]) -> Response:
        record: RequestRecord = state["record"]
        record.asks(body, len(body.input))
        if service.others and (elsewhere := service.others.sent_on(body.model, PATH)):
            record.outcome = "sent_on"
            return elsewhere
        whole = not body.stream and body.stream_format == "audio"
        open_stream = partial(service.of(body.model).open, body, state["client"], whole)
        return SpeechResponse(open_stream, service.metrics, sse=body.stream_format == "sse", whole=whole)

    return answer


class ShortWay:
    def __init__(self, app: ASGIApp, answer: Answer) -> None:
        self.app, self.answer = app, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != PATH or scope["method"] != "POST" or not _is_json(scope):
            return await self.app(scope, receive, send)
        first: Message | SonantError
        try:
            first = await receive()
        except SonantError as e:  # the body may not come
            first = e.with_traceback(None)
        response = None if isinstance(first, SonantError) else self._answer(scope, first)
        if response is None:
            return await self.app(scope, _Again(first, receive), send)
        return await response(scope, receive, send)

    def _answer(self, scope: Scope, message: Message) -> Response | None:
        """None: there is more of the body, or something is wrong with it."""
        raw = message.get("body", b"")
        if message["type"] != "http.request" or message.get("more_body", False) or len(raw) > _SHORT_BYTES:
            return None
        try:
            return self.answer(SpeechBody.model_validate(parsed(raw)), scope["state"])
        except (json.JSONDecodeError, ValidationError, SonantError):
            return None


class _Again:
    """A `receive` that first repeats what it gave already: a message, or an error."""

    def __init__(self, first: Message | SonantError, receive: Receive) -> None:
        self._first: Message | SonantError | None = first
        self._receive = receive

    async def __call__(self) -> Message:
        first, self._first = self._first, None
        if isinstance(first, SonantError):
            raise first
        return await self._receive() if first is None else first


def _is_json(scope: Scope) -> bool:
    kinds = [value for name, value in scope["headers"] if name == b"content-type"]
    return len(kinds) == 1 and kinds[0] in _JSON


async def until_gone(work: Coroutine[Any, Any, None], receive: Receive) -> bool:
    """Run `work` to its end → True; or cancel it once the client of an HTTP request is gone → False."""
    task, left = asyncio.current_task(), False
    assert task is not None

    def leave(_: asyncio.Task[None]) -> None:
        nonlocal left
        left = True
        task.cancel()

    gone = asyncio.create_task(_disconnected(receive))
    gone.add_done_callback(leave)
    try:
        await work
        return True
    except asyncio.CancelledError:
        if left and task.uncancel() == 0:  # nobody else has cancelled it
            return False
        raise
    finally:
        gone.remove_done_callback(leave)
        gone.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class SpeechResponse(Response):
    """`open_stream` starts the work; what it enters on the stack is closed when the response is over."""

    def __init__(self, open_stream: Open, metrics: Metrics, *, sse: bool, whole: bool) -> None:
        self.open_stream, self.metrics, self.sse, self.whole = open_stream, metrics, sse, whole
        self.background = None
        self.started_s = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record: RequestRecord = scope["state"]["record"]
        try:
            if not await until_gone(self._work(record, scope, receive, send), receive):
                self.metrics.aborted.labels("client_gone").inc()
                record.outcome = "client_gone"
        except asyncio.CancelledError:
            self.metrics.aborted.labels("shutdown").inc()
            record.outcome = "shutdown"
            raise

    async def _work(self, record: RequestRecord, scope: Scope, receive: Receive, send: Send) -> None:
        with ExitStack() as resources:
            try:
                stream, pipeline = await self.open_stream(resources)
                record.opened()
                encoded = self._encoded(stream, pipeline)
                first = b"".join([data async for data in encoded]) if self.whole else await anext(encoded, b"")
                if not first:
                    raise EngineError("the model made no sound of this text; try other words or another seed")
            except Exception as e:
                record.outcome = outcome_of(e)
                self.metrics.requests.labels("speech", record.outcome).inc()
                if isinstance(e, TooLate):  # other refusals were counted at admission
                    self.metrics.rejected.labels("too_late").inc()
                await response_for(e)(scope, receive, send)
                return
            try:
                record.sounded()
                if self.whole:
                    await Response(first, 200, pipeline.headers(stream))(scope, receive, send)
                else:
                    await self._send(send, pipeline, stream, first, encoded)
            except Exception:
                record.outcome = "error"
                self.metrics.requests.labels("speech", "error").inc()
                self.metrics.aborted.labels("failed").inc()
                raise  # breaks the connection off
            record.outcome, record.audio_s = str(stream.finish_reason), pipeline.audio_s
            self.metrics.count("speech", stream, pipeline, self.started_s)

    async def _send(
        self, send: Send, pipeline: AudioPipeline, stream: SpeechStream, first: bytes, rest: AsyncIterator[bytes]
    ) -> None:
        headers = pipeline.headers(stream)
        if self.sse:
            headers["content-type"] = "text/event-stream; charset=utf-8"
        raw = [(k.lower().encode(), v.encode("latin-1")) for k, v in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        await pipeline.sent(send({"type": "http.response.body", "body": first, "more_body": True}))
        self.metrics.ttfp.observe(time.monotonic() - self.started_s)
        async for data in rest:
            await pipeline.sent(send({"type": "http.response.body", "body": data, "more_body": True}))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _encoded(self, stream: SpeechStream, pipeline: AudioPipeline) -> AsyncIterator[bytes]:
        """The encoded sound in pieces, none of them empty; with SSE, wrapped in events."""
        async for chunk in stream:
            data = await pipeline.push(chunk)
            if data:
                yield _delta(data) if self.sse else data
        check_complete(stream)
        tail = await pipeline.finish()
        if tail:
            yield _delta(tail) if self.sse else tail
        if self.sse:
            yield _event({"type": "speech.audio.done", "usage": pipeline.usage(stream)})


def _delta(data: bytes) -> bytes:
    return _event({"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()})


def _event(value: dict[str, object]) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()
