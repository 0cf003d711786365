"""Graphs that are captured while the engine already answers: what waits for them, and what must not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from engine.conftest import MakeEngine
from sonant import Engine
from sonant.engine.graph_warmup import GraphWarmup, PendingGraph
from sonant.engine.step_graphs import StepGraphs
from sonant.engine.step_profiler import StepProfiler
from waiting import until


@dataclass
class Kind:
    """A step whose capture does nothing but take time."""

    name: str
    takes_s: float = 0.0
    look: Callable[[], None] = lambda: None
    captured: list[int] = field(default_factory=list)
    order: list[tuple[str, int]] = field(default_factory=list)

    def capture(self, buckets: Iterable[int], pool: Any) -> None:
        self.look()
        time.sleep(self.takes_s)
        self.captured += buckets
        self.order += [(self.name, b) for b in buckets]

    def captures(self, bucket: int) -> tuple[Callable[[Any], Any], Any]:
        raise NotImplementedError("nothing is rehearsed here")


MakeWith = Callable[..., Engine]


@pytest.fixture
def make_with(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeWith]:
    """`make_with(kinds, sizes)` opens an engine that has a graph of each kind and size to capture."""

    def make(kinds: list[Kind], sizes: Iterable[int], **options: Any) -> Engine:
        wanted = [PendingGraph(kind, size, size) for kind in kinds for size in sizes]
        monkeypatch.setattr(StepGraphs, "_warmup", lambda _: GraphWarmup(wanted, None))
        return make_engine(**options)

    yield make


def test_small_batches_come_before_the_first_answer_and_all_in_the_end(make_with: MakeWith) -> None:
    order: list[tuple[str, int]] = []
    gate = threading.Event()

    def look() -> None:
        assert len(order) < 4 or gate.wait(20)

    kinds = [Kind("frame", look=look, order=order), Kind("codec", look=look, order=order)]
    engine = make_with(kinds, [1, 4, 16, 64], warm_rows=4)
    assert order == [("frame", 1), ("codec", 1), ("frame", 4), ("codec", 4)]
    assert engine.warm_share == 0.5
    gate.set()
    until(lambda: engine.warm_share == 1)
    assert order[4:] == [("frame", 16), ("codec", 16), ("frame", 64), ("codec", 64)]


def test_everything_first_if_that_is_asked_for(make_with: MakeWith) -> None:
    kind = Kind("frame")
    assert make_with([kind], [1, 4, 64], warm_rows=64).warm_share == 1
    assert kind.captured == [1, 4, 64]


def test_requests_are_answered_meanwhile_as_ever(make_with: MakeWith, make_engine: MakeEngine) -> None:
    engine = make_with([Kind("frame", 0.05)], range(1, 41), warm_rows=1)
    streams = [engine.stream("hello the world", seed=n, max_frames=8) for n in range(4)]
    speech = [stream.result() for stream in streams]
    assert engine.warm_share < 1
    for n, said in enumerate(speech):
        assert (said.frames == engine.speak("hello the world", seed=n, max_frames=8).frames).all()
    until(lambda: engine.warm_share == 1)


def test_no_listener_runs_dry_for_a_capture(make_with: MakeWith) -> None:
    """The tiny model is soon far ahead of its listeners; captures come between its steps, but none before that."""
    takes_s = 0.1
    least: list[float] = []
    kind = Kind("frame", takes_s)
    engine = make_with([kind], range(1, 40), warm_rows=1, max_rows=2, steps_ahead=1)

    def look() -> None:
        scheduler, now_s = engine.loop.scheduler, time.monotonic()
        assert all(r.steps_in_flight == 0 for r in scheduler.running)
        least.extend(scheduler.slack_s(r, now_s) for r in [*scheduler.running, *scheduler.waiting])

    kind.look = look
    streams = [engine.stream("hello the world", seed=n, max_frames=60) for n in range(3)]
    for stream in streams:
        stream.result()
    assert least and min(least) > takes_s


def test_a_capture_longer_than_what_is_in_hand_waits_for_an_idle_engine(make_with: MakeWith) -> None:
    kind = Kind("frame", 0.4)
    engine = make_with([kind], [1, 2, 3], warm_rows=1)
    stream = engine.stream("hello the world", seed=1, max_frames=6)  # 0.48 s of sound: never twice 0.4 s ahead
    next(iter(stream))
    before = len(kind.captured)
    stream.result()
    assert len(kind.captured) == before <= 2
    until(lambda: engine.warm_share == 1)


def test_closing_does_not_wait_for_what_is_left(make_with: MakeWith) -> None:
    engine = make_with([Kind("frame", 0.05)], range(1, 400), warm_rows=1)
    began_s = time.monotonic()
    engine.close()
    assert time.monotonic() - began_s < 2
    assert engine.warm_share < 1


def test_without_memory_for_more_the_engine_stays_with_what_it_has(
    make_with: MakeWith, caplog: pytest.LogCaptureFixture
) -> None:
    kind = Kind("frame")

    def full() -> None:
        if kind.captured[-1:] == [2]:
            raise torch.OutOfMemoryError("no room")

    kind.look = full
    engine = make_with([kind], [1, 2, 4, 8], warm_rows=1)
    until(lambda: not engine.loop.runner.graphs.warmup.pending)
    assert engine.warm_share == 0.5 and kind.captured == [1, 2]
    assert engine.speak("hello", seed=1, max_frames=3).frames.size
    assert "2 graphs are not captured" in caplog.text


def test_an_engine_that_is_to_have_all_at_its_start_does_with_less(
    make_with: MakeWith, caplog: pytest.LogCaptureFixture
) -> None:
    kind = Kind("frame")

    def full() -> None:
        if len(kind.captured) == 5:
            raise torch.OutOfMemoryError("no room")

    kind.look = full
    engine = make_with([kind], [1, 2, 4, 8, 16, 32], warm_rows=32)
    assert kind.captured == [1, 2, 4, 8, 16] and not engine.loop.runner.graphs.warmup.pending
    assert "1 graphs are not captured" in caplog.text

    def full_at_once() -> None:
        raise torch.OutOfMemoryError("no room")

    with pytest.raises(torch.OutOfMemoryError):  # not even the smallest graph fits
        make_with([Kind("frame", look=full_at_once)], [1, 2, 4, 8, 16, 32], warm_rows=32)


class Compiler:
    """Has the kernels of some stages at once, and those of the others when nothing else is left to wait for."""

    over = False

    def __init__(self, ready: set[int]) -> None:
        self.ready, self.asked = ready, list[list[int]]()

    def wait_for_any(self, stages: list[int]) -> int:
        self.asked.append(stages)
        return next((stage for stage in stages if stage in self.ready), stages[0])

    def wait_for_all(self) -> None:
        pass


def test_a_graph_whose_kernels_are_there_does_not_wait_for_one_that_is_smaller(
    make_with: MakeWith, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler(ready={2, 4})
    monkeypatch.setattr("sonant.engine.runner.NothingAhead", lambda: compiler)
    kind = Kind("frame")
    assert make_with([kind], [1, 4, 16, 64], warm_rows=64).warm_share == 1
    assert kind.captured == [4, 64, 1, 16]
    assert compiler.asked == [[1, 2, 3, 4], [1, 3, 4], [1, 3], [3]]


def test_with_little_memory_small_ones_come_first_whoever_waits(
    make_with: MakeWith, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sonant.engine.runner.NothingAhead", lambda: Compiler(ready={2, 4}))
    monkeypatch.setattr(GraphWarmup, "may_skip", False)
    kind = Kind("frame")
    make_with([kind], [1, 4, 16, 64], warm_rows=64)
    assert kind.captured == [1, 4, 16, 64]


def test_a_large_one_that_fails_before_small_ones_leaves_them_to_be_captured(
    make_with: MakeWith, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sonant.engine.runner.NothingAhead", lambda: Compiler(ready={4}))
    kind = Kind("frame")

    def full() -> None:
        if not kind.captured:
            kind.captured.append(0)
            raise torch.OutOfMemoryError("no room")

    kind.look = full
    engine = make_with([kind], [1, 4, 16, 64], warm_rows=64)
    assert kind.captured == [0, 1, 4] and not engine.loop.runner.graphs.warmup.pending
    assert "2 graphs are not captured" in caplog.text


def test_nothing_is_captured_while_steps_are_recorded(make_with: MakeWith) -> None:
    kind = Kind("frame", 0.02)
    engine = make_with([kind], range(1, 60), warm_rows=1)
    seen: list[float] = []
    recorder = threading.Thread(target=lambda: StepProfiler(engine).record(2, timeout_s=0.5))
    recorder.start()
    until(lambda: engine.loop.runner.graphs.warmup.held)
    while recorder.is_alive():
        if engine.loop.runner.graphs.warmup.held:
            seen.append(engine.warm_share)
        time.sleep(0.01)
    assert len(set(seen)) == 1 and seen[0] < 1
    until(lambda: engine.warm_share == 1)
