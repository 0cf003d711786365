"""A front end's way to the step thread, over the channel.

It belongs to an event loop. Requests may be posted and aborted from any thread, as those of a long text are. Sound
comes in on the loop, a step's in one message, so that a listener is woken without passing through another thread.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from weakref import WeakSet

import msgspec
import numpy as np

from sonant.engine.request import Request
from sonant.engine.step_queue import OpenText
from sonant.engine.stream import running_loop
from sonant.errors import EngineClosed
from sonant.models.speech_spec import SpeechSpec
from sonant.serving.channel import messages as m
from sonant.serving.channel.connection import BadChannel, Connection
from sonant.serving.channel.errors_on_wire import error_from
from sonant.serving.channel.wire_prompt import to_wire
from sonant.types import AudioChunk, FinishReason, Frames

T = TypeVar("T", bound=m.Message)

logger = logging.getLogger(__name__)


class RemoteSteps:
    def __init__(self, connection: Connection, spec: SpeechSpec, sound: str) -> None:
        self.connection, self.spec = connection, spec
        self.loop = asyncio.get_running_loop()
        self._sound = np.dtype(sound)
        self._ids = itertools.count()
        self._requests: dict[int, Request] = {}
        self._ids_of: dict[Request, int] = {}
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._open: WeakSet[OpenText] = WeakSet()
        self._ending = threading.Lock()  # of the engine, while another thread posts; never held while anything is sent
        self._place: int | None = None  # see `in_place`
        self.failure: Exception | None = None

    # Called by any thread

    def post(self, request: Request) -> None:
        self.check_room()
        request.enqueue()
        speech, id = request.speech, next(self._ids)
        message = m.Speak(
            id,
            self._place if running_loop() is self.loop else None,
            to_wire(request.prompt),
            speech.live,
            speech.priority,
            request.arrival_s,
            request.first_audio_s,
            request.heard_s,
            speech.first_audio_within_s,
            self.spec.context_segments > 0,
            speech.playback_speed,
        )
        with self._ending:
            self.check_room()  # once more: nobody would tell a request that comes after the engine was lost
            self._requests[id], self._ids_of[request] = request, id
        self._send(message, in_haste=True)

    def abort(self, requests: Iterable[Request]) -> None:
        found = (self._ids_of.get(request) for request in requests)  # which the event loop may end meanwhile
        ids = [id for id in found if id is not None]
        if ids:
            self._send(m.Abort(ids))

    def drop(self, abort: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed, and so is the channel
            self.loop.call_soon_threadsafe(abort)

    def heard(self, request: Request) -> None:
        id = self._ids_of.get(request)
        if id is not None:
            self._send(m.Heard(id, request.heard_s))

    def watch(self, text: OpenText) -> None:
        self.check_room()
        self._open.add(text)

    def expect(self) -> None:
        """Nothing to do: a front end drains by its connections, which last until their text has ended."""

    def stop_expecting(self) -> None:
        pass

    def check_room(self) -> None:
        """The queue itself is the engine's, which checks it when a request comes."""
        if self.failure is not None:
            raise EngineClosed(str(self.failure)) from self.failure

    def _send(self, message: msgspec.Struct, *, in_haste: bool = False) -> None:
        send = self._send_in_haste if in_haste else self.connection.send
        if running_loop() is self.loop:
            send(message)
        else:
            self.loop.call_soon_threadsafe(send, message)

    # On the event loop

    def _send_in_haste(self, message: msgspec.Struct) -> None:
        """Send a lone client's messages at once, so that the engine works while this end goes on: it admits while the
        prompt is laid out. Those of a crowd go together, or each would cost both ends a turn of their loops."""
        send = self.connection.send_now if len(self._asked) <= 1 else self.connection.send
        send(message)

    def next_id(self) -> int:
        return next(self._ids)

    def tell(self, message: m.Message) -> None:
        """Send a message that nobody waits for."""
        self.connection.send(message, soon=False)

    @contextmanager
    def in_place(self, place: int) -> Iterator[None]:
        """Requests posted within are spoken only if this place is given, which need not be known yet."""
        self._place = place
        try:
            yield
        finally:
            self._place = None

    async def ask(self, message: Any, answer: type[T]) -> T:
        """Send a message that has an id, and wait for its answer. Raises the error if it failed or was refused."""
        return await self.answer_to(message, self.send_ask(message), answer)

    def send_ask(self, message: Any) -> asyncio.Future[Any]:
        """The first half of `ask`; `answer_to` must follow."""
        self.check_room()
        future = self._asked[message.id] = self.loop.create_future()
        self._send_in_haste(message)
        return future

    async def answer_to(self, message: Any, future: asyncio.Future[Any], answer: type[T]) -> T:
        try:
            told = await future
        finally:
            del self._asked[message.id]
        if isinstance(told, m.Failed):  # An error in the future itself would make a reference cycle.
            raise error_from(told.error, told.message, told.status, told.code, told.retry_s)
        if not isinstance(told, answer):
            raise BadChannel(f"{type(told).__name__} is no answer to {type(message).__name__}")
        return told

    def take(self, message: m.Message) -> None:
        if isinstance(message, m.StepDone):
            for sound in message.sounds:
                self._hear(sound)
            for end in message.ends:
                self._end(end)
            return
        future = self._asked.get(getattr(message, "id", -1))
        if future is None or future.done():
            return  # nobody waits for it any more
        future.set_result(message)

    def lost(self, failure: Exception) -> None:
        """Nothing comes any more: tell all that wait."""
        with self._ending:
            self.failure = failure
            requests, self._requests = self._requests, {}
            self._ids_of.clear()
        for id, future in self._asked.items():
            if not future.done():
                future.set_result(m.Failed(id, "EngineClosed", str(failure)))
        for request in requests.values():
            request.sink.fail(failure)
        for text in list(self._open):
            text.engine_ended(failure)

    def _hear(self, sound: m.Sound) -> None:
        request = self._requests.get(sound.id)
        if request is None:
            return
        request.be_heard(time.monotonic())
        samples = np.frombuffer(sound.samples, self._sound)
        self._tell(request, AudioChunk(samples, self.spec.sample_rate, sound.start_s, self._frames(sound)))

    def _tell(self, request: Request, chunk: AudioChunk) -> None:
        """A listener that cannot take its sound is dropped, and the others go on."""
        try:
            request.sink.push(chunk)
        except Exception:
            logger.warning("a listener could not be given their sound and was dropped", exc_info=True)
            self.abort([request])

    def _end(self, end: m.End) -> None:
        request = self._requests.pop(end.id, None)
        if request is None:
            return
        del self._ids_of[request]
        if end.error is not None:
            request.sink.fail(error_from(end.error, end.message, retry_s=end.retry_s))
        else:
            request.sink.finish(FinishReason(end.reason or FinishReason.ABORT))

    def _frames(self, sound: m.Sound) -> Frames:
        """The frames or, if only their count was asked for, as many zeros."""
        shape = (sound.frames, *self.spec.frame_shape)
        if sound.codes is None:
            return np.broadcast_to(np.zeros((), self.spec.frame_dtype), shape)
        return np.frombuffer(sound.codes, self.spec.frame_dtype).reshape(shape)
