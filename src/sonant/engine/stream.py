"""What a caller holds while speech is being made: iterate over it, in a thread or in an event loop.

Sound is handed over by the step thread, which never waits for a slow reader: chunks queue here. The queue of a long
text is bounded, since its next part is not begun while much is unread. Dropping the stream, or leaving its `with`,
aborts what is left.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Self

import numpy as np

from sonant.audio.pcm import pcm16
from sonant.errors import Aborted, BadRequest
from sonant.types import AudioChunk, FinishReason, Samples, Speech

MAX_UNREAD_S = 60.0


class Mailbox:
    """The engine's end of a stream: a queue that wakes threads and event loops alike."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._chunks: deque[AudioChunk] = deque()
        self._wakers: list[Callable[[], None]] = []
        self._go_on: Callable[[], None] | None = None  # to be called once the reader has caught up
        self._unread_s = 0.0
        self.max_unread_s = MAX_UNREAD_S
        self.reason: FinishReason | None = None
        self.error: Exception | None = None
        self.started_s = time.monotonic()
        self.first_audio_s: float | None = None
        self.ended_s: float | None = None

    def push(self, chunk: AudioChunk) -> None:
        with self._changed:
            if self.first_audio_s is None:
                self.first_audio_s = time.monotonic()
            self._chunks.append(chunk)
            self._unread_s += _seconds(chunk)
            self._wake()

    def finish(self, reason: FinishReason) -> None:
        with self._changed:
            self.reason, self.ended_s, self._go_on = reason, time.monotonic(), None
            self._wake()

    def fail(self, error: Exception) -> None:
        with self._changed:
            self.error, self.ended_s, self._go_on = error, time.monotonic(), None
            self._wake()

    @property
    def unread_s(self) -> float:
        """Seconds of sound that are not taken yet."""
        return self._unread_s

    def has_room(self, go_on: Callable[[], None]) -> bool:
        """Whether more sound may be begun; if not, `go_on` is called once, by the reader, as soon as it may."""
        with self._changed:
            if self._unread_s <= self.max_unread_s:
                return True
            self._go_on = go_on
            return False

    @property
    def ended(self) -> bool:
        return self.ended_s is not None

    def take(self, timeout_s: float | None) -> AudioChunk | None:
        """The next chunk; None at the end. Raises the engine's error if it failed, or TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._chunks or self.ended, timeout_s):
                raise TimeoutError(f"no sound within {timeout_s} s")
            taken = self._pop()
        return _handed_over(*taken)

    async def atake(self) -> AudioChunk | None:
        while True:
            loop = asyncio.get_running_loop()
            ready = asyncio.Event()
            taken = None
            with self._changed:
                if self._chunks or self.ended:
                    taken = self._pop()
                else:
                    self._wakers.append(lambda loop=loop, ready=ready: _set_soon(loop, ready))  # type: ignore[misc]
            if taken is not None:
                return _handed_over(*taken)
            await ready.wait()

    def _pop(self) -> tuple[AudioChunk | None, Callable[[], None] | None]:
        """The next chunk, and what to call after the lock is left."""
        if not self._chunks:
            if self.error is not None:
                raise self.error
            return None, None
        chunk = self._chunks.popleft()
        self._unread_s = self._unread_s - _seconds(chunk) if self._chunks else 0.0
        go_on = None
        if self._unread_s <= self.max_unread_s:
            go_on, self._go_on = self._go_on, None
        return chunk, go_on

    def _wake(self) -> None:
        self._changed.notify_all()
        wakers, self._wakers = self._wakers, []
        for wake in wakers:
            wake()


def _handed_over(chunk: AudioChunk | None, go_on: Callable[[], None] | None) -> AudioChunk | None:
    if go_on is not None:
        go_on()
    return chunk


def _seconds(chunk: AudioChunk) -> float:
    return len(chunk.samples) / chunk.sample_rate


def _set_soon(loop: asyncio.AbstractEventLoop, ready: asyncio.Event) -> None:
    if running_loop() is loop:  # In a front end sound comes in on the loop that waits for it.
        return ready.set()
    with suppress(RuntimeError):  # the loop is closed, so nobody waits there
        loop.call_soon_threadsafe(ready.set)
    return None


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs in this thread, if any."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class SpeechStream:
    """Chunks of sound as they are made. Works with `for`, `async for`, `with` and `async with`."""

    def __init__(
        self,
        mailbox: Mailbox,
        seed: int,
        sample_rate: int,
        input_tokens: int,
        abort: Callable[[], None],
        drop: Callable[[Callable[[], None]], None],
        opening: Callable[[int], Samples] | None = None,
    ) -> None:
        """`drop` is given `abort` when the stream is garbage collected, see `StepQueue`."""
        self._mailbox, self._abort, self._drop, self._opening = mailbox, abort, drop, opening
        self.seed = seed
        self.input_tokens = input_tokens  # positions of the prompt, summed over the parts of a long text
        self.sample_rate = sample_rate

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended; None before that, or if it failed."""
        return self._mailbox.reason

    @property
    def first_audio_s(self) -> float | None:
        """Seconds from submission to the first chunk; None before it came."""
        first = self._mailbox.first_audio_s
        return None if first is None else first - self._mailbox.started_s

    @property
    def total_s(self) -> float | None:
        """Seconds from submission to the end; None before it."""
        ended = self._mailbox.ended_s
        return None if ended is None else ended - self._mailbox.started_s

    @property
    def unread_s(self) -> float:
        """Seconds of sound that are made but not read yet."""
        return self._mailbox.unread_s

    def limit_unread(self, max_unread_s: float) -> None:
        """Begin no part of a long text while more sound than this is unread; by default `MAX_UNREAD_S`.

        Applies to a listener (`live`) only. A file is made whether it is read or not.
        """
        if not max_unread_s >= 0:  # it could not be reached by reading either: the text would never go on
            raise BadRequest(f"max_unread_s must be at least 0, not {max_unread_s}")
        self._mailbox.max_unread_s = max_unread_s

    def abort(self) -> None:
        """Stop making sound at once; what was made can still be read. Harmless after the end."""
        if not self._mailbox.ended:
            self._abort()

    def read(self, timeout_s: float | None = None) -> AudioChunk | None:
        """The next chunk, or None at the end."""
        return self._mailbox.take(timeout_s)

    def result(self) -> Speech:
        """Wait for the end and join all that is unread."""
        return self._joined(list(self))

    async def aresult(self) -> Speech:
        return self._joined([chunk async for chunk in self])

    def _joined(self, chunks: list[AudioChunk]) -> Speech:
        box = self._mailbox
        if box.reason is FinishReason.ABORT:
            raise Aborted("the request was aborted before its speech was complete")
        assert box.reason is not None and self.total_s is not None
        samples = [c.samples for c in chunks]
        frames = np.concatenate([c.frames for c in chunks]) if chunks else np.zeros((0, 0), np.int32)
        if self._opening is not None and chunks and chunks[0].start_s == 0:
            opening = self._opening(len(frames))
            samples.insert(0, opening if samples[0].dtype == opening.dtype else pcm16(opening))  # type: ignore[arg-type]
        return Speech(
            samples=np.concatenate(samples) if samples else np.zeros(0, np.float32),
            sample_rate=self.sample_rate,
            frames=frames,
            finish_reason=box.reason,
            seed=self.seed,
            first_audio_s=self.total_s if self.first_audio_s is None else self.first_audio_s,
            total_s=self.total_s,
        )

    def __iter__(self) -> Iterator[AudioChunk]:
        while (chunk := self.read()) is not None:
            yield chunk

    async def __aiter__(self) -> AsyncIterator[AudioChunk]:
        while (chunk := await self._mailbox.atake()) is not None:
            yield chunk

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.abort()

    def __del__(self) -> None:
        if not self._mailbox.ended:
            self._drop(self._abort)
