"""Streams and events without a GPU: an engine's work waits in queues, and runs in any order that a GPU could choose.

Nothing runs before something waits for it. Then, among the streams whose next piece of work waits for nothing, the
order decides which goes on: frames first, so that sound is as late as possible, sound first, or a drawn one. Steps, row
writes and copies are such pieces, and each runs as a whole.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from sonant import Engine
from sonant.engine.codec_stream import CodecStream
from sonant.engine.graphs import GraphedStep, RowIndices
from sonant.engine.runner import Runner

Order = Literal["frames first", "sound first", "drawn"]
GPU: Any = SimpleNamespace(type="cuda")
Mark = tuple["Stream", int]  # the point after this many pieces of a stream's work


class Stream:
    def __init__(self, streams: StreamsOnCpu) -> None:
        self.streams, self.device = streams, GPU
        self.queue: deque[tuple[int, Mark | Callable[[], None]]] = deque()
        self.put_count = self.done_count = 0
        streams.all.append(self)

    def put(self, work: Mark | Callable[[], None]) -> None:
        self.put_count += 1
        self.queue.append((self.streams.next_number(), work))

    def wait_event(self, event: Event) -> None:
        if event.mark is not None:
            self.put(event.mark)

    @property
    def can_go_on(self) -> bool:
        return bool(self.queue) and (callable(work := self.queue[0][1]) or is_done(work))

    def go_on(self) -> None:
        number, work = self.queue.popleft()
        if callable(work):
            self.streams.note(self, number)
            with torch.inference_mode():
                work()
        self.done_count += 1


def is_done(mark: Mark) -> bool:
    stream, count = mark
    return stream.done_count >= count


class Event:
    def __init__(self, streams: StreamsOnCpu) -> None:
        self.streams = streams
        self.mark: Mark | None = None

    def record(self, stream: Stream) -> None:
        self.mark = stream, stream.put_count

    def synchronize(self) -> None:
        assert self.mark is not None, "nothing was sent"
        self.streams.run_until(self.mark)


class Later:
    """A step's results to come. As with a graph, its next run overwrites them."""

    def __init__(self, step: Deferred, count: int) -> None:
        self.step, self.count = step, count

    def value(self) -> Tensor:
        assert self.step.out is not None and len(self.step.out) == self.count, "another run's results are there"
        return self.step.out

    def record_stream(self, stream: Stream) -> None: ...


class Deferred:
    def __init__(self, streams: StreamsOnCpu, step: GraphedStep, runner: Runner) -> None:
        self.streams, self.step, self.runner = streams, step, runner
        self.out: Tensor | None = None

    def __call__(self, rows: RowIndices) -> Later:
        given, span_blocks = np.array(rows), self.runner.span_blocks

        def run() -> None:
            before, self.runner.span_blocks = self.runner.span_blocks, span_blocks
            self.out = self.step(given)
            self.runner.span_blocks = before

        self.streams.put(run)
        return Later(self, len(given))


class StreamsOnCpu:
    """Replaces the device of an idle engine."""

    def __init__(self, engine: Engine, order: Order, monkeypatch: pytest.MonkeyPatch) -> None:
        self.order, self.random = order, random.Random(7)
        self.all: list[Stream] = []
        self._numbers = self._latest = self.overtaken = 0  # pieces of work, numbered in the order of their launches
        self.steps = self.current = Stream(self)
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(self))
        monkeypatch.setattr(torch.cuda, "Event", lambda: Event(self))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.current)
        monkeypatch.setattr(torch.cuda, "stream", self.on)
        runner = engine.loop.runner
        self.codec_stream = runner.codec_stream = CodecStream(GPU, own=True)
        self.codec_stream.few_rows = self.codec_stream.first_sound_rows = 0
        runner.rows.before_copy = runner.codec_stream.wait_for
        self._take_over_copies(runner)
        self._take_over_steps(engine, runner)

    def _take_over_copies(self, runner: Runner) -> None:
        ring: Any = runner.ring
        ring.stream, ring.made = Stream(self), Event(self)
        for slot in ring.slots:
            slot.sleeping = slot.spinning = Event(self)
            slot.records_copied = Event(self)
        copy_records, copy_sounds = ring._copy_records, ring._copy_sounds

        def records(slot: Any, made: Sequence[Later], clock: None) -> None:
            self.put(lambda: copy_records(slot, [m.value() for m in made], clock))

        def sounds(slot: Any, made: Sequence[Later]) -> None:
            self.put(lambda: copy_sounds(slot, [m.value() for m in made]))

        ring._copy_records, ring._copy_sounds = records, sounds

    def _take_over_steps(self, engine: Engine, runner: Any) -> None:
        rows, parking = runner.rows, engine.loop.scheduler.sharing.parking
        prefill, preroll, apply, copy = runner.prefill, runner._preroll, rows.apply, parking._copy

        def apply_later() -> None:
            staged, rows.staged = rows.staged, {}

            def run() -> None:
                before, rows.staged = rows.staged, staged
                apply()
                rows.staged = before

            self.put(run)

        runner.frame = {n: Deferred(self, step, runner) for n, step in runner.frame.items()}
        runner.codec = {n: Deferred(self, step, runner) for n, step in runner.codec.items()}
        runner.prefill = lambda items: self.put(lambda: prefill(items))
        runner._preroll = lambda *given: self.now(lambda: preroll(*given))
        rows.apply = apply_later
        parking._copy = lambda sources, places: self.put(lambda: copy(sources, places))  # type: ignore[method-assign]

    # Called by the engine

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def put(self, work: Callable[[], None]) -> None:
        self.current.put(work)

    def now(self, work: Callable[[], int]) -> int:
        """Put work whose result the host needs at once, and run everything up to it."""
        found: list[int] = []
        self.put(lambda: found.append(work()))
        self.run_until((self.current, self.current.put_count))
        return found[0]

    def run_until(self, mark: Mark) -> None:
        while not is_done(mark):
            able = [stream for stream in self.all if stream.can_go_on]
            assert able, "all streams wait for each other"
            self._choose(able).go_on()

    @property
    def work_left(self) -> int:
        return sum(callable(work) for stream in self.all for _, work in stream.queue)

    def _choose(self, able: list[Stream]) -> Stream:
        if self.order == "drawn":
            return self.random.choice(able)
        last = self.codec_stream.stream if self.order == "frames first" else self.steps
        return next((stream for stream in able if stream is not last), able[0])

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def note(self, stream: Stream, number: int) -> None:
        """A piece of work runs now. The codec's is overtaken if a later step has already run."""
        if stream is self.steps:
            self._latest = number
        self.overtaken += stream is self.codec_stream.stream and number < self._latest
