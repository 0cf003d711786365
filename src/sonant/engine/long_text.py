"""A long text as several requests, heard as one.

The parts are made one after another for a listener (who has seconds in hand by then), and a few at a time for a
file; either way sound leaves in order, with its seams smoothed. Every prompt is laid out before the first is
submitted, so that going on from part to part costs the step thread nothing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import numpy as np

from sonant.audio.join import Joiner
from sonant.engine.request import Request, Sink
from sonant.types import AudioChunk, FinishReason, Samples

OFFLINE_PARTS_AT_ONCE = 4


class PartSink:
    """Takes one part's sound for the whole."""

    def __init__(self, whole: LongText, index: int) -> None:
        self.whole, self.index = whole, index

    def push(self, chunk: AudioChunk) -> None:
        self.whole.on_chunk(self.index, chunk)

    def finish(self, reason: FinishReason) -> None:
        self.whole.on_finish(self.index, reason)

    def fail(self, error: Exception) -> None:
        self.whole.on_fail(error)


class LongText:
    """Submits the parts in turn and joins their sound into `sink`. All callbacks run on the step thread."""

    def __init__(
        self, sink: Sink, sample_rate: int, codebooks: int, live: bool, submit: Callable[[Request], None]
    ) -> None:
        self.sink, self.sample_rate, self.submit = sink, sample_rate, submit
        self.no_codes = np.zeros((0, codebooks), np.int32)
        self.at_once = 1 if live else OFFLINE_PARTS_AT_ONCE
        self.joiner = Joiner(sample_rate)
        self.lock = threading.Lock()  # abort comes from other threads
        self.queue: deque[Request] = deque()
        self.active: list[Request] = []
        self.early: dict[int, list[AudioChunk]] = {}  # sound of parts whose turn has not come
        self.ended: dict[int, FinishReason] = {}
        self.playing = 0
        self.parts = 0
        self.given_samples = 0
        self.aborted = False
        self.over = False

    def start(self, parts: list[Request]) -> None:
        self.parts = len(parts)
        self.queue.extend(parts)
        for _ in range(self.at_once):
            self._submit_next()

    def abort(self) -> list[Request]:
        """Stop going on; the parts to be aborted."""
        with self.lock:
            self.aborted = True
            self.queue.clear()
            return list(self.active)

    def on_chunk(self, index: int, chunk: AudioChunk) -> None:
        if index == self.playing:
            self._play(chunk, self.joiner.push(chunk.samples))
        else:
            self.early.setdefault(index, []).append(chunk)

    def on_finish(self, index: int, reason: FinishReason) -> None:
        self.ended[index] = reason
        if reason is FinishReason.ABORT:
            return self._end(reason)
        while self.playing in self.ended and not self.over:
            self._next_part()
        self._submit_next()
        with self.lock:
            cut_off = self.aborted and len(self.ended) == len(self.active)
        if cut_off:  # aborted between two parts: no part is left to say so
            self._end(FinishReason.ABORT)
        return None

    def on_fail(self, error: Exception) -> None:
        if not self.over:
            self.over = True
            self.abort()
            self.sink.fail(error)

    def _next_part(self) -> None:
        if self.playing == self.parts - 1:
            self._play(None, self.joiner.end())
            lengths = [r for r in self.ended.values() if r is FinishReason.LENGTH]
            return self._end(lengths[0] if lengths else FinishReason.STOP)
        self._play(None, self.joiner.seam())
        self.playing += 1
        for chunk in self.early.pop(self.playing, []):
            self._play(chunk, self.joiner.push(chunk.samples))
        return None

    def _submit_next(self) -> None:
        with self.lock:
            if not self.queue:
                return
            request = self.queue.popleft()
            if self.active and self.active[0].first_audio_s is not None:
                request.first_audio_s = self.active[0].first_audio_s
                request.heard_s = self.given_samples / self.sample_rate
            self.active.append(request)
        self.submit(request)

    def _play(self, chunk: AudioChunk | None, samples: Samples) -> None:
        start_s = self.given_samples / self.sample_rate
        self.given_samples += len(samples)
        if chunk is not None:
            self.sink.push(AudioChunk(samples, self.sample_rate, start_s, chunk.codes))
        elif len(samples):
            self.sink.push(AudioChunk(samples, self.sample_rate, start_s, self.no_codes))

    def _end(self, reason: FinishReason) -> None:
        if not self.over:
            self.over = True
            self.sink.finish(reason)
