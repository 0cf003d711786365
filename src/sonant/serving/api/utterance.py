"""One utterance of a session: text in as it comes, sound out as it is made.

Segments of text are given to the engine when they are whole, at most two ahead of what was sent, so that they follow
each other without a gap. Text and sound that wait are bounded: a client that does not read holds back its own next
segments and nobody else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.websockets import WebSocketDisconnect

from sonant.engine.text_feed import TextFeed
from sonant.errors import BadRequest, Overloaded, TooLate
from sonant.serving.api.error_responses import client_error, outcome_of
from sonant.serving.api.schemas import SessionConfig
from sonant.serving.audio_pipeline import AudioPipeline, check_complete
from sonant.serving.channel.remote_engine import Admitted, RemoteEngine
from sonant.serving.observability.request_log import RequestRecord
from sonant.serving.service import SpeechService
from sonant.text.splitter import IncrementalSplitter

UNSENT_SEGMENTS = 2
_EAGER_BELOW_S = 1.0  # with less sound buffered, a segment is cut before the end of its sentence

Send = Callable[[dict[str, Any] | bytes], Awaitable[None]]


@dataclass(frozen=True)
class Segment:
    index: int
    text: str
    pipeline: AudioPipeline
    cut_s: float


class UtteranceText:
    """The text of an utterance that has arrived so far. The session's reader adds to it, its speaker takes from it."""

    def __init__(self, index: int, config: SessionConfig, max_segment_chars: int) -> None:
        self.index, self.config = index, config
        self.splitter = IncrementalSplitter(config.split_granularity, max_segment_chars)
        self.complete = False
        self.changed = asyncio.Event()

    def push(self, text: str) -> None:
        self.splitter.push(text)
        self.changed.set()

    def finish(self) -> None:
        self.complete = True
        self.changed.set()

    def drop_rest(self) -> None:
        self.splitter.drop()
        self.finish()


class UtteranceSpeaker:
    def __init__(
        self,
        text: UtteranceText,
        service: SpeechService,
        client: str,
        send: Send,
        took: Callable[[], None],
        record: RequestRecord,
    ) -> None:
        """`took` is called when text was taken, which makes room for more. `record` is filled in as things happen."""
        self.text, self.service, self.client, self.send, self.took = text, service, client, send, took
        self.record = record
        record.asks(text.config, 0)
        self.config = text.config
        self.engine: RemoteEngine | None = None  # set once there is something to speak
        self.admitted: Admitted | None = None
        self.segments: list[Segment] = []  # those given to the engine, in order
        self.sent = 0  # how many of them were sent whole
        self.sentences = 0  # segments so far, including those that were refused
        self.sound_s = 0.0
        self.first_sound_s: float | None = None
        self.reported = False  # the client has been told the error
        self.over = False  # no more sound will come, even if text is left

    @property
    def busy(self) -> bool:
        return self.sent < len(self.segments)

    async def run(self) -> None:
        """Speak to the end of the text. Raises what ends the session: no admission, or a failed engine."""
        feed: TextFeed | None = None
        with ExitStack() as resources:
            async with asyncio.TaskGroup() as tasks:
                while not self.over and (text := await self._next_text()) is not None:
                    if self.engine is None:
                        self.admitted = await self.service.admit(self.client, resources, kind="utterance")
                        self.engine = self.admitted.engine
                    try:
                        if feed is None:
                            feed = await self._open(self.engine, resources)
                            tasks.create_task(self._send_sound(feed))
                        await self._add(self.engine, feed, text)
                    except BadRequest as e:
                        await self._refuse(text, e)
                if feed is not None:
                    feed.end()
        if feed is not None and (self.segments or self.record.outcome is None):
            self.record.outcome = str(feed.stream.finish_reason)
        if self.record.outcome is not None:
            self.service.metrics.requests.labels("stream", self.record.outcome).inc()
        self.record.outcome = self.record.outcome or "stop"  # there was nothing to speak
        await self.send({"type": "session.done", "utterance_index": self.text.index, "total_sentences": self.sentences})

    async def _next_text(self) -> str | None:
        """The next segment of text once there is room for it; None after the last."""
        text, changed = self.text, self.text.changed
        while True:
            changed.clear()
            patience_s = self._patience_s()
            if len(self.segments) - self.sent < UNSENT_SEGMENTS:
                segment = text.splitter.flush() if text.complete else text.splitter.take(eager=patience_s == 0)
                if segment is not None or text.complete:
                    self.record.characters = (self.record.characters or 0) + len(segment or "")
                    self.took()
                    return segment
            try:
                async with asyncio.timeout(patience_s or None):
                    await changed.wait()
            except TimeoutError:
                continue

    def _patience_s(self) -> float | None:
        """How long to wait for the end of a sentence; None: at least until what is being spoken has been sent."""
        if self.busy:
            return None
        if self.first_sound_s is None:
            return 0.0
        buffered_s = self.sound_s / self.config.playback_speed - (time.monotonic() - self.first_sound_s)
        return max(0.0, buffered_s - _EAGER_BELOW_S)

    async def _open(self, engine: RemoteEngine, resources: ExitStack) -> TextFeed:
        request = await self.service.request_builder.build(engine, self.config, text="", live=True)
        try:
            feed = engine.feed(request)
        except Overloaded as e:
            self.service.rejected(e)
            raise
        self.record.opened()
        resources.callback(feed.stream.abort)
        feed.stream.limit_unread(self.service.options.max_unread_sound_s)
        return feed

    async def _add(self, engine: RemoteEngine, feed: TextFeed, text: str) -> None:
        form, streams = self.config.response_format, self.config.streams
        cut_s = time.monotonic()
        pipeline = await self.service.audio_pipeline(engine, self.config, form, streaming=streams)
        self.segments.append(Segment(self.sentences, text, pipeline, cut_s))  # before its sound can come
        try:
            await run_in_threadpool(feed.add, text)
        except BadRequest:
            self.segments.pop()
            raise
        self._tell_arrived()
        self.sentences += 1

    async def _refuse(self, text: str, error: BadRequest) -> None:
        """Report a refused segment in its place: after the sound of all before it."""
        self._tell_arrived()  # it never will, and the utterance may stay open for long
        while self.busy and not self.over:
            self.text.changed.clear()
            await self.text.changed.wait()
        index, self.sentences = self.sentences, self.sentences + 1
        self.record.outcome = outcome_of(error)  # `run` replaces it if some of the utterance is spoken
        await self._send_start(index, text)
        await self.send(self._error(index, error))
        await self._send_done(index, 0, failed=True)

    def _tell_arrived(self) -> None:
        """The segment that the utterance was admitted for is no longer on its way to the engine's queue."""
        if self.admitted is not None:
            self.admitted.arrived()

    async def _send_sound(self, feed: TextFeed) -> None:
        segment: Segment | None = None
        sent_bytes = 0
        try:
            async for chunk in feed.stream:
                if segment is None:
                    segment, sent_bytes = self.segments[chunk.part], 0
                    await self._send_start(segment.index, segment.text)
                self.sound_s += len(chunk.samples) / chunk.sample_rate
                self.record.audio_s = self.sound_s
                sent_bytes += await self._send_bytes(segment, await segment.pipeline.push(chunk))
                if chunk.ends_part:
                    sent_bytes += await self._send_bytes(segment, await segment.pipeline.finish())
                    await self._send_done(segment.index, sent_bytes)
                    self.service.metrics.count_sound(segment.pipeline, segment.cut_s)
                    self.sent, segment = self.sent + 1, None
                    self.text.changed.set()
            check_complete(feed.stream)
            self._end_text()
        except WebSocketDisconnect:
            raise  # The client is gone, and nothing has failed.
        except Exception as e:
            if isinstance(e, TooLate):
                self.service.rejected(e)
            if segment is not None:
                await self.send({**self._error(segment.index, e), **_discard(sent_bytes)})
                await self._send_done(segment.index, sent_bytes, failed=True)
                self.reported = True
            self.record.outcome = outcome_of(e)
            self.service.metrics.requests.labels("stream", self.record.outcome).inc()
            raise

    def _end_text(self) -> None:
        """The sound is over, at the end of the text or of `max_frames`: drop what is left of the text."""
        self.over, self.sent = True, len(self.segments)
        self.text.drop_rest()

    async def _send_bytes(self, segment: Segment, data: bytes) -> int:
        if data:
            await segment.pipeline.sent(self.send(data))
            if self.first_sound_s is None:
                self.first_sound_s = time.monotonic()
                self.record.sounded()
                self.service.metrics.ttfp.observe(self.first_sound_s - segment.cut_s)
        return len(data)

    async def _send_start(self, index: int, text: str) -> None:
        form = self.config.response_format
        start = {"type": "audio.start", **self._place(index), "sentence_text": text, "format": form}
        if form == "pcm":
            assert self.engine is not None
            start["sample_rate"] = self.config.sample_rate or self.engine.sample_rate
        await self.send(start)

    async def _send_done(self, index: int, total_bytes: int, *, failed: bool = False) -> None:
        await self.send({"type": "audio.done", **self._place(index), "total_bytes": total_bytes, "error": failed})

    def _error(self, index: int, error: Exception) -> dict[str, Any]:
        where = f"utterance {self.text.index}, sentence {index}"
        shown = client_error(error)
        return {"type": "error", "message": f"{where}: {shown.message}", "code": shown.code}

    def _place(self, index: int) -> dict[str, Any]:
        return {"utterance_index": self.text.index, "sentence_index": index}


def _discard(sent_bytes: int) -> dict[str, Any]:
    return {"partial_audio": True, "action": "discard"} if sent_bytes else {}
