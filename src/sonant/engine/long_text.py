"""A text of several requests, heard as one.

The parts are known from the start (a long text) or come while the first are being spoken (`text_feed.py`). They are
made one or two at a time for a listener, who has sound buffered, and a few at a time for a file; either way sound
leaves in order, with its seams smoothed. While a listener has much unread sound no further part is begun, or sound that
is never read would fill the memory. `max_frames` bounds the whole, however many parts are made at once: what was made
beyond it is dropped. Every prompt is laid out before its part gets here, so that going on from part to part costs the
step thread nothing.

Where the model goes on from what was said before (`Context`), parts are made strictly one after the other. They come
here laid out without context, which only shows that they can be spoken; a part is laid out anew, on the engine's prompt
thread, when the one before it has ended.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from sonant.audio.join import Joiner
from sonant.engine.context import Context
from sonant.engine.frame_limit import FrameLimit
from sonant.engine.request import Request, Sink
from sonant.engine.step_queue import StepQueue
from sonant.engine.stream import Mailbox
from sonant.errors import EngineClosed, EngineError, SonantError
from sonant.models.speech_spec import SpeechSpec
from sonant.types import AudioChunk, FinishReason, Samples

OFFLINE_PARTS_AT_ONCE = 4

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Clock:
    """The part with which the listener last began to hear, and the samples given before it."""

    request: Request
    given_samples: int


class LongText:
    """Submits the parts in turn and joins their sound into `sink`.

    Sound and the ends of parts come on the step thread. Parts, the end of the text, aborts and the news that a listener
    has room again come on any other; parts laid out with context on the prompt thread. The sink's lock is taken inside
    this one's, never the other way round.
    """

    def __init__(
        self,
        sink: Sink,
        spec: SpeechSpec,
        queue: StepQueue,
        *,
        at_once: int,
        live: bool,
        context: Context | None = None,
        max_frames: int | None = None,
    ) -> None:
        self.limit = FrameLimit(max_frames, spec.samples_per_frame)
        self.sink, self.sample_rate, self.steps, self.context = sink, spec.sample_rate, queue, context
        self.at_once, self.live = at_once if context is None else 1, live
        self.listener = sink if live and isinstance(sink, Mailbox) else None  # who may read too slowly
        self.no_frames = np.empty((0, *spec.frame_shape), spec.frame_dtype)
        self.joiner = Joiner(spec.sample_rate)
        self.lock = threading.RLock()
        self.queue: deque[Request] = deque()
        self.laying_out = False  # the next part, on the prompt thread
        self._awaits_reader = False
        self.active: list[Request] = []  # all that were ever submitted: part n is `active[n]`
        self.segments: list[int] = []  # of each part: which piece of the caller's text it belongs to
        self.early: dict[int, list[AudioChunk]] = {}  # sound of parts whose turn has not come
        self.ended: dict[int, FinishReason] = {}
        self.playing = 0
        self.given_samples = 0
        self.clock: _Clock | None = None
        self.closed = False  # the text is complete
        self.aborted = False
        self.over = False
        self.error: Exception | None = None  # that it ended with

    @property
    def parts(self) -> int:
        return len(self.segments)

    @property
    def held_back(self) -> bool:
        """Whether it waits for its listener to read on, until the next part has been posted. Takes no lock."""
        return self._awaits_reader and not self.over and not self.aborted

    def start(self, parts: Sequence[Request]) -> None:
        """The whole text at once."""
        with self.lock:
            self.closed = True
            self.add(parts)

    def add(self, parts: Sequence[Request]) -> None:
        """Add one more piece of the text, which has one or more parts."""
        with self.lock:
            if self.error is not None:
                raise self.error
            if self.over or self.aborted:
                return
            piece = self.segments[-1] + 1 if self.segments else 0
            self.segments.extend([piece] * len(parts))
            self.queue.extend(parts)
            self._submit_what_may()

    def end(self) -> None:
        """No more text will come."""
        with self.lock:
            self.closed = True
            if self.playing == self.parts:
                self._end_by_parts()

    def abort(self) -> list[Request]:
        """Submit nothing more, and return the parts to be aborted."""
        with self.lock:
            self.aborted = True
            self.queue.clear()
            if not self._unfinished():  # No part will report it.
                self._end(FinishReason.ABORT)
            return list(self.active)

    def engine_ended(self, failure: Exception | None) -> None:
        """No part will be spoken any more. The reader is told even if no part is in flight."""
        self.on_fail(failure or EngineClosed("the engine was closed before the text was spoken; load it again"))

    def on_chunk(self, index: int, chunk: AudioChunk) -> None:
        with self.lock:
            if self.over:
                return
            if self.context is not None:
                self.context.hear(chunk.frames)
            if index == self.playing:
                self._hear(chunk)
                self._submit_what_may()
            else:
                self.early.setdefault(index, []).append(chunk)

    def on_finish(self, index: int, reason: FinishReason) -> None:
        with self.lock:
            self.ended[index] = reason
            if reason is FinishReason.ABORT:
                return self._end(reason)
            if self.context is not None:
                self.context.end_part(self.active[index].speech.text)
            while self.playing in self.ended and not self.over:
                self._next_part()
            self._submit_what_may()
            if self.aborted and not self._unfinished():  # aborted between two parts
                self._end(FinishReason.ABORT)
            return None

    def on_fail(self, error: Exception) -> None:
        with self.lock:
            if not self.over:
                self.over, self.error = True, error
                self.steps.abort(self.abort())
                self.sink.fail(error)

    def _go_on(self) -> None:
        """The listener has room again. Called on their thread; the engine may be gone by then."""
        with self.lock:
            try:
                self._submit_what_may()
            except EngineClosed as e:
                self.on_fail(e)

    def _next_part(self) -> None:
        last = self.closed and self.playing == self.parts - 1
        spent = self.limit.reached and self.playing < self.parts - 1  # though more was to be said
        self._play(None, self.joiner.end() if last else self.joiner.seam(), ends=spent)
        self.playing += 1
        if last:
            return self._end_by_parts()
        if spent:
            return self._cut()
        for chunk in self.early.pop(self.playing, []):
            if not self.over:
                self._hear(chunk)
        return None

    def _hear(self, chunk: AudioChunk) -> None:
        """Hand on a chunk whose turn it is, up to the last frame that the whole may have."""
        chunk, cut = self.limit.take(chunk)
        samples = self.joiner.push(chunk.samples)
        if not cut:
            return self._play(chunk, samples)
        self._play(chunk, np.concatenate([samples, self.joiner.end()]), ends=True)
        return self._cut()

    def _cut(self) -> None:
        """The whole has all the frames that it may have; what would follow is dropped."""
        self.queue.clear()
        self.steps.abort(self.active)
        self._end(FinishReason.LENGTH)

    def _unfinished(self) -> int:
        return len(self.active) - len(self.ended)

    def _submit_what_may(self) -> None:
        """Submit the parts that may run now. A listener's second part waits for the first sound, not to delay it."""
        if self.limit.reached:
            if self.queue and self.playing == len(self.active) and not self.over:
                self._cut()
            return
        while self.queue and not self.laying_out and self._unfinished() < self.at_once:
            if self.live and self._unfinished() and not self.given_samples:
                return
            if self.listener is not None and not self.listener.has_room(self._go_on):
                self._awaits_reader = True
                return
            part = self.queue.popleft()
            if self.context is None or not self.active or not self.context.said:
                self._post(part)
            else:
                self.laying_out = True
                self.context.thread.run_soon(partial(self._lay_out, part, self.context))
        self._awaits_reader = False  # only now: between two parts an engine that drains must see one or the other

    def _lay_out(self, part: Request, context: Context) -> None:
        """Lay a part out after what was said, on the prompt thread. What goes wrong ends this text and no other."""
        with self.lock:
            if self.over or self.aborted:
                return
            said = tuple(context.said)
        try:
            request = context.go_on(part, said)
            with self.lock:
                self.laying_out = False
                if not self.over and not self.aborted:
                    self._post(request)
        except SonantError as e:
            self.on_fail(e)
        except Exception as e:
            logger.warning("the next part of a text could not be laid out", exc_info=True)
            error = EngineError(f"the next part of the text could not be laid out: {type(e).__name__}: {e}")
            error.__cause__ = e
            self.on_fail(error)

    def _post(self, request: Request) -> None:
        self._set_clock(request)
        self.active.append(request)
        self.steps.post(request)

    def _set_clock(self, request: Request) -> None:
        """Tell a later part what its listener has buffered, at least what is unread. With nothing they wait anew."""
        unread_s = 0.0
        if self.live and self.clock is not None and self.clock.request.first_audio_s is not None:
            now_s, began_s, heard_s = time.monotonic(), self.clock.request.first_audio_s, self._heard_s(self.clock)
            if self._unfinished() or heard_s / request.playback_speed > now_s - began_s:
                request.continue_stream(began_s, heard_s)
                return
            unread_s = 0.0 if self.listener is None else self.listener.unread_s
            request.continue_stream(*((now_s, unread_s) if unread_s else (None, 0.0)))
        self.clock = _Clock(request, self.given_samples - round(unread_s * self.sample_rate))

    def _heard_s(self, clock: _Clock) -> float:
        return (self.given_samples - clock.given_samples) / self.sample_rate

    def _play(self, chunk: AudioChunk | None, samples: Samples, *, ends: bool = False) -> None:
        start_s = self.given_samples / self.sample_rate
        self.given_samples += len(samples)
        if self.clock is not None:
            for later in self.active[self.playing + 1 :]:
                later.hear(self._heard_s(self.clock))
                self.steps.heard(later)
        segment = self.segments[self.playing]
        ends = ends or (chunk is None and segment not in self.segments[self.playing + 1 : self.playing + 2])
        frames = self.no_frames if chunk is None else chunk.frames
        if chunk is not None or ends or len(samples):
            self.sink.push(AudioChunk(samples, self.sample_rate, start_s, frames, segment, ends))

    def _end_by_parts(self) -> None:
        cut = FinishReason.LENGTH in self.ended.values()
        self._end(FinishReason.LENGTH if cut else FinishReason.STOP)

    def _end(self, reason: FinishReason) -> None:
        if not self.over:
            self.over = True
            self.sink.finish(reason)
