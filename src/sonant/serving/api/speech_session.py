"""`WS /v1/audio/speech/stream`: a conversation of utterances, in vllm-omni's messages.

    client: session.config, then input.text …, input.done (the utterance is complete), more of them, session.close
    server: audio.start, binary sound, audio.done for each segment of text; session.done after each utterance; error

One task reads and one speaks. The reader stops reading while `MAX_WAITING_CHARS` wait to be spoken, so that a client
that writes faster than its text is spoken is held back by its own socket.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from contextlib import ExitStack, suppress
from typing import Any

from fastapi import APIRouter
from pydantic import ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect

from sonant.config import EngineConfig
from sonant.errors import EngineClosed, Overloaded
from sonant.serving.api.error_responses import client_error, outcome_of
from sonant.serving.api.json_body import parsed
from sonant.serving.api.mistakes import first_mistake
from sonant.serving.api.schemas import SessionConfig
from sonant.serving.api.utterance import UtteranceSpeaker, UtteranceText
from sonant.serving.observability.request_log import RequestRecord
from sonant.serving.refused import Refused
from sonant.serving.service import SpeechService

CONFIG_S = 10.0  # within which the first message must come
MAX_TEXT_MESSAGE_CHARS = 128 * 1024
# How much may wait to be spoken before reading stops. The limits are ample, since while reading stops a client's pings
# are not read either, and many clients give up when nobody answers those for 20 s.
MAX_WAITING_CHARS, MAX_QUEUED_UTTERANCES = 256 * 1024, 256

CLOSED, POLICY, TOO_BIG, FAILED, RESTARTING, TRY_LATER = 1000, 1008, 1009, 1011, 1012, 1013


class SessionEnd(Exception):
    """Ends the session from our side; the client is told why."""

    def __init__(self, code: int, message: str, error_code: str) -> None:
        super().__init__(message)
        self.code, self.error_code = code, error_code


class BadMessage(Exception):
    """A message that cannot be understood or obeyed; the session goes on."""


def session_routes(service: SpeechService) -> APIRouter:
    router = APIRouter()

    @router.websocket("/v1/audio/speech/stream")
    async def stream(socket: WebSocket) -> None:
        await SpeechSession(socket, service).run()

    return router


class SpeechSession:
    def __init__(self, socket: WebSocket, service: SpeechService) -> None:
        self.socket, self.service = socket, service
        self.client: str = socket.scope["state"]["client"]
        self.record: RequestRecord = socket.scope["state"]["record"]
        self.config: SessionConfig | None = None
        self.current: UtteranceText | None = None  # the one that text is added to
        self.queue: deque[UtteranceText] = deque()  # begun, and not yet spoken to the end
        self.speaker: UtteranceSpeaker | None = None
        self.begun = 0  # utterances so far
        self.closing = False  # session.close has come
        self.changed = asyncio.Event()
        self.active_s = time.monotonic()

    async def run(self) -> None:
        await self.socket.accept()
        metrics = self.service.metrics
        with ExitStack() as resources:
            ending: Exception | None = None
            metrics.sessions.inc()
            resources.callback(metrics.sessions.dec)
            watch = asyncio.create_task(self._watch_for_shutdown())
            resources.callback(watch.cancel)
            try:
                engine = self.service.any_link.engine
                await engine.admit(resources, self.client, "session")
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._read(engine.config))
                    tasks.create_task(self._speak())
            except asyncio.CancelledError:
                metrics.aborted.labels("shutdown").inc()
                raise
            except Exception as e:
                ending = _first(e)
            self.record.outcome = self._outcome(ending)
            await self._close(ending)

    def _outcome(self, ending: Exception | None) -> str:
        if ending is None:
            return "ok"
        if isinstance(ending, WebSocketDisconnect):
            return "client_gone" if self.queue else "ok"
        if isinstance(ending, SessionEnd):
            return {POLICY: "bad_request", TOO_BIG: "bad_request", RESTARTING: "shutdown"}.get(ending.code, "ok")
        return outcome_of(ending)

    async def _close(self, ending: Exception | None) -> None:
        if isinstance(ending, WebSocketDisconnect):
            if self.queue:
                self.service.metrics.aborted.labels("client_gone").inc()
            return None
        with suppress(WebSocketDisconnect, RuntimeError):  # The client may be gone meanwhile.
            if ending is None:
                return await self.socket.close(CLOSED)
            end = ending if isinstance(ending, SessionEnd) else self._end_for(ending)
            if self.speaker is None or not self.speaker.reported:
                await self._send({"type": "error", "message": str(end), "code": end.error_code})
            await self.socket.close(end.code, end.error_code)
        return None

    def _end_for(self, error: Exception) -> SessionEnd:
        if isinstance(error, Refused) and self.speaker is None:  # else it was counted with the utterance
            self.service.rejected(error)
        shown = client_error(error)
        if isinstance(error, Refused | Overloaded | EngineClosed):
            code = RESTARTING if self.service.in_flight.draining.is_set() else TRY_LATER
            return SessionEnd(code, shown.message, shown.code)
        self.service.metrics.aborted.labels("failed").inc()
        return SessionEnd(FAILED, shown.message, shown.code)

    # Reading

    async def _read(self, engine: EngineConfig) -> None:
        while not self.closing:
            while self._is_full():
                self.changed.clear()
                await self.changed.wait()
            try:
                self._take(_parsed(await self._receive()), engine)
            except BadMessage as e:
                if self.config is None:  # A session whose first message is wrong ends.
                    raise SessionEnd(POLICY, str(e), "invalid_message") from None
                await self._send({"type": "error", "message": str(e), "code": "invalid_message"})

    def _is_full(self) -> bool:
        """Whether some of the text received must be spoken before more is read."""
        ready = [u for u in self.queue if u.complete or u.config.split_granularity != "none"]
        waiting = sum(u.splitter.buffered_chars for u in ready)
        return waiting >= MAX_WAITING_CHARS or len(self.queue) > MAX_QUEUED_UTTERANCES

    async def _receive(self) -> str | None:
        """The next message; None: it was binary."""
        limit_s = self.service.options.ws_idle_s
        if self.config is None:
            limit_s = min(CONFIG_S, limit_s)
        while True:
            try:
                async with asyncio.timeout(max(0.0, self.active_s + limit_s - time.monotonic())):
                    event = await self.socket.receive()
                break
            except TimeoutError:
                if self._speaking():
                    self.active_s = time.monotonic()
                    continue
                self.service.metrics.aborted.labels("idle").inc()
                what = "session.config" if self.config is None else "a message"
                raise SessionEnd(CLOSED, f"{what} did not come within {limit_s:g} s", "idle_timeout") from None
        if event["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(event.get("code", 1005))
        self.active_s = time.monotonic()
        return event.get("text")

    def _take(self, message: dict[str, Any], engine: EngineConfig) -> None:
        kind = message.get("type")
        if kind == "session.config":
            self._configure(message)
        elif self.config is None:
            raise BadMessage(f"the first message must be session.config, not {str(kind)[:40]!r}")
        elif kind == "input.text":
            self._take_text(message.get("text"), engine)
        elif kind == "input.done":
            self._utterance(engine).finish()
            self.current = None
        elif kind == "session.close":
            if self.current is not None:
                self.current.drop_rest()
            self.closing = True
            self.changed.set()
        else:
            raise BadMessage(f"no message is called {str(kind)[:40]!r}")

    def _configure(self, message: dict[str, Any]) -> None:
        if self.current is not None:
            raise BadMessage("session.config cannot change an utterance that has begun; send input.done first")
        try:
            config = SessionConfig.model_validate({k: v for k, v in message.items() if k != "type"})
            self.service.of(config.model)
        except ValidationError as e:
            raise BadMessage(f"session.config: {first_mistake(e)[0]}") from None
        except Refused as e:
            raise BadMessage(f"session.config: {e}") from None
        others = self.service.others
        if others and (place := others.place(config.model)):  # No client follows a redirect on an open socket.
            raise BadMessage(f"this model is served at {place}/v1/audio/speech/stream; connect there")
        self.config = config

    def _take_text(self, text: object, engine: EngineConfig) -> None:
        if not isinstance(text, str):
            raise BadMessage("input.text needs a text")
        if not text:
            return
        utterance, limit = self._utterance(engine), engine.max_text_chars
        if utterance.splitter.buffered_chars + len(text) > limit + MAX_TEXT_MESSAGE_CHARS:
            message = f"over {limit:,} characters wait for input.done; send it sooner"
            raise SessionEnd(TOO_BIG, message, "too_long")
        utterance.push(text)

    def _utterance(self, engine: EngineConfig) -> UtteranceText:
        if self.current is None:
            assert self.config is not None
            own = self.service.of(self.config.model).link.loaded  # of several models each has its own longest segment
            self.current = UtteranceText(self.begun, self.config, (own.config if own else engine).segment_chars)
            self.begun += 1
            self.queue.append(self.current)
            self.changed.set()
        return self.current

    def _speaking(self) -> bool:
        busy = self.speaker is not None and self.speaker.busy
        return busy or any(utterance.complete for utterance in self.queue)

    # Speaking

    async def _speak(self) -> None:
        while True:
            while not self.queue:
                if self.closing:
                    return
                if self.service.in_flight.draining.is_set():
                    raise SessionEnd(RESTARTING, "the server is shutting down", "shutting_down")
                self.changed.clear()
                await self.changed.wait()
            await self._speak_one(self.queue[0])
            self.queue.popleft()
            self.changed.set()

    async def _speak_one(self, text: UtteranceText) -> None:
        own = self.record
        record = RequestRecord(
            f"{own.id}/{text.index}", self.client, own.route, traceparent=own.traceparent, tracestate=own.tracestate
        )
        self.speaker = UtteranceSpeaker(
            text, self.service.of(text.config.model), self.client, self._send, self.changed.set, record
        )
        try:
            await self.speaker.run()
        except Exception as e:
            error = _first(e)
            if record.outcome is None and isinstance(error, WebSocketDisconnect):
                record.outcome = "client_gone"
            elif record.outcome is None:  # It failed before it began.
                record.outcome = outcome_of(error)
                self.service.metrics.requests.labels("stream", record.outcome).inc()
            raise
        finally:
            self.service.log.write(record)

    async def _send(self, message: dict[str, Any] | bytes) -> None:
        if isinstance(message, bytes):
            await self.socket.send_bytes(message)
        else:
            await self.socket.send_text(json.dumps(message))  # in ASCII, which can carry text that is not valid Unicode
        self.active_s = time.monotonic()

    async def _watch_for_shutdown(self) -> None:
        await self.service.in_flight.draining.wait()
        self.changed.set()


def _parsed(raw: str | None) -> dict[str, Any]:
    if raw is None:
        raise BadMessage("messages must be text, not binary")
    try:
        message = parsed(raw)
    except Refused as e:
        raise BadMessage(str(e)) from None
    except ValueError:
        raise BadMessage("the message is not valid JSON") from None
    if not isinstance(message, dict):
        raise BadMessage("messages must be JSON objects")
    if message.get("type") != "session.config" and len(raw) > MAX_TEXT_MESSAGE_CHARS:
        raise BadMessage(f"the message has over {MAX_TEXT_MESSAGE_CHARS:,} characters; send less at once")
    return message


def _first(error: Exception) -> Exception:
    """The first error in the groups that tasks wrap errors in."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
