"""Sound that is made beside the next step's frames is the same, in any order that streams and events leave to a GPU.

There is no GPU here: `streams_on_cpu.py` keeps launched work in queues, and events say what must come before what.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clips import reference_clip
from engine.conftest import MakeEngine
from engine.families import Family, Options, same, speak_at_once
from engine.random_parking import RandomParking
from engine.streams_on_cpu import GPU, Order, StreamsOnCpu
from engine.test_graph_warmup import Kind
from engine.test_scheduler import ask, make, speaking
from engine.test_streams import wait_until_idle
from engine.test_weight_paging import least_of
from sonant import Engine, EngineConfig
from sonant.engine import runner
from sonant.engine.codec_stream import CodecStream
from sonant.engine.graph_warmup import GraphWarmup, PendingGraph
from sonant.engine.request import State
from sonant.errors import ConfigError
from waiting import until

SHORT_TURNS = {"chunk_s": (0.16,), "codec_batch_s": 0.16}  # sound of one or two rows a step: others' rings fill up
DRAWN = pytest.param("drawn", marks=pytest.mark.slow)
FRAMES_AHEAD = ("frames first", DRAWN)  # the order most likely to go wrong, and a drawn one
Overlap = Callable[..., StreamsOnCpu]


@pytest.fixture
def overlap(monkeypatch: pytest.MonkeyPatch) -> Overlap:
    return lambda engine, order: StreamsOnCpu(engine, order, monkeypatch)


@pytest.mark.parametrize("order", [*FRAMES_AHEAD, pytest.param("sound first", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "options", [pytest.param({}, id="at once"), pytest.param(SHORT_TURNS, id="in turns", marks=pytest.mark.slow)]
)
def test_a_crowd_sounds_as_each_of_it_alone(
    make_any: MakeEngine, family: Family, order: Order, options: dict[str, Any], overlap: Overlap
) -> None:
    engine = make_any(max_rows=4, steps_ahead=1, **options)
    requests = [{**family.request(n), "max_frames": 6 + 3 * n} for n in range(6)]
    alone = [engine.speak(**request) for request in requests]
    streams = overlap(engine, order)
    together = [engine.stream(**request) for request in requests]
    for expected, stream in zip(alone, together, strict=True):
        same(expected, stream.result())
    assert streams.overtaken > 0 or order == "sound first"


@pytest.mark.parametrize("order", FRAMES_AHEAD)
def test_who_speaks_alone_sounds_the_same_to_the_bit(
    make_any: MakeEngine, family: Family, order: Order, overlap: Overlap
) -> None:
    engine = make_any(max_rows=2, steps_ahead=1, chunk_s=(0.01,))
    request = {**family.request(3), "max_frames": 12}
    expected = engine.speak(**request)
    overlap(engine, order)
    speech = engine.speak(**request)
    np.testing.assert_array_equal(speech.samples, expected.samples)
    np.testing.assert_array_equal(speech.frames, expected.frames)


class LateParking(RandomParking):
    """Spoiling a row is work on the steps' stream, too."""

    def __init__(self, engine: Engine, streams: StreamsOnCpu, seed: int) -> None:
        super().__init__(engine, seed)
        self.streams = streams

    def spoil(self, row: int) -> None:
        spoil = super().spoil
        self.streams.put(lambda: spoil(row))


@pytest.mark.parametrize("order", FRAMES_AHEAD)
def test_who_is_parked_while_their_sound_is_made_sounds_the_same(
    make_any: MakeEngine, family: Family, order: Order, overlap: Overlap
) -> None:
    engine = make_any(max_rows=3, steps_ahead=1, max_parked=8, chunk_s=(0.08,))
    requests = [{**family.request(n), "max_frames": 14} for n in range(6)]
    alone = [engine.speak(**request) for request in requests]
    parking = LateParking(engine, overlap(engine, order), seed=3)
    together = [engine.stream(**request) for request in requests]
    for expected, stream in zip(alone, together, strict=True):
        same(expected, stream.result())
    assert parking.parked_in_flight > 0


@pytest.mark.parametrize("order", FRAMES_AHEAD)
def test_a_row_that_was_given_up_is_another_request_s(
    make_any: MakeEngine, family: Family, order: Order, overlap: Overlap
) -> None:
    engine = make_any(max_rows=2, steps_ahead=1)
    wanted = [{**family.request(n), "max_frames": 15} for n in range(4)]
    alone = [engine.speak(**request) for request in wanted]
    overlap(engine, order)
    for expected, request in zip(alone, wanted, strict=True):
        gone = engine.stream(**{**family.request(5), "max_frames": 400, "live": True})
        gone.read()
        stream = engine.stream(**request)
        gone.abort()
        list(gone)
        same(expected, stream.result())
    wait_until_idle(engine)


@pytest.mark.parametrize("order", FRAMES_AHEAD)
def test_a_voice_s_own_sound_comes_before_what_it_says(make_engine: MakeEngine, order: Order, overlap: Overlap) -> None:
    engine = make_engine("base", steps_ahead=1, max_rows=3)
    voice = engine.clone(reference_clip(), "speech and the user")
    requests: list[Options] = [
        {"text": text, "voice": voice, "seed": n, "max_frames": 9, "live": False}
        for n, text in enumerate(("hello the world", "hi", "on and on"))
    ]
    alone = [engine.speak(**request) for request in requests]
    engine.model.prerolls.clear()  # type: ignore[attr-defined]
    overlap(engine, order)
    for _ in range(2):  # the second time the voice's sound is known
        together = [engine.stream(**request) for request in requests]
        for expected, stream in zip(alone, together, strict=True):
            same(expected, stream.result())


def test_steps_that_keep_their_order_are_not_overtaken(make_engine: MakeEngine, overlap: Overlap) -> None:
    engine = make_engine(max_rows=4, steps_ahead=1)
    streams = overlap(engine, "frames first")
    requests: list[Options] = [{"text": "hello the world", "seed": n, "max_frames": 20} for n in range(4)]
    streams.codec_stream.few_rows = 4
    speak_at_once(engine, requests)
    assert streams.overtaken == 0
    streams.codec_stream.few_rows = 3
    speak_at_once(engine, requests)
    assert streams.overtaken > 0


@pytest.mark.parametrize(
    ("rows", "first_sound", "keeps_order"),
    [(1, False, True), (8, False, True), (9, False, False), (9, True, True), (48, True, True), (49, True, False)],
)
def test_few_rows_and_first_sounds_keep_the_order(rows: int, first_sound: bool, keeps_order: bool) -> None:
    stream = CodecStream(torch.device("cpu"), own=False)
    assert stream.keeps_order(rows, first_sound) is keeps_order


def test_a_plan_knows_of_first_sounds() -> None:
    scheduler = make()
    speaking(scheduler, 0.0, 1).launched = 2
    plan = scheduler.plan(0.05)
    assert plan.codec and not plan.first_sound
    new, file = ask(scheduler), ask(scheduler, live=False)
    scheduler.plan(0.05)
    for request in (new, file):
        request.state = State.DECODING
    assert scheduler.plan(0.05).first_sound
    assert not scheduler.plan(0.05).first_sound  # the first sound is being made
    assert new.vocoded and not file.vocoded


def test_nothing_is_captured_while_sound_is_made(make_engine: MakeEngine, overlap: Overlap) -> None:
    engine = make_engine(max_rows=2, steps_ahead=1)
    streams, left = overlap(engine, "frames first"), list[int]()
    kind = Kind("frame", look=lambda: left.append(streams.work_left))
    engine.loop.runner.graphs.warmup = GraphWarmup([PendingGraph(kind, n, n) for n in range(1, 9)], None)
    speak_at_once(engine, [{"text": "hello the world", "seed": n, "max_frames": 20} for n in range(2)])
    until(lambda: engine.warm_share == 1)
    assert left == [0] * 8 and streams.overtaken > 0


def test_on_a_cpu_there_is_one_order(make_any: MakeEngine, family: Family) -> None:
    said = {**family.request(1), "max_frames": 8}
    engines = [make_any(codec_stream=choice) for choice in ("shared", "own")]
    shared, own = (engine.speak(**said) for engine in engines)
    np.testing.assert_array_equal(shared.samples, own.samples)
    assert all(engine.loop.runner.codec_stream.stream is None for engine in engines)
    assert all(step.pool is None for engine in engines for step in engine.loop.runner.codec.values())


@pytest.mark.parametrize(
    ("choice", "paged", "own"), [("shared", False, False), ("own", False, True), ("own", True, False)]
)
def test_weights_that_come_and_go_leave_it_at_one_stream(
    make_engine: MakeEngine, tiny_checkpoints: Mapping[str, Path], choice: str, paged: bool, own: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    asked: list[bool] = []

    def noted(device: torch.device, own: bool) -> CodecStream:
        asked.append(own)
        return CodecStream(device, own)

    budget = str(least_of(tiny_checkpoints["custom"])) if paged else None
    monkeypatch.setattr(runner, "CodecStream", noted)
    engine = make_engine(max_rows=1, codec_stream=choice, gpu_weights=budget)
    assert (engine.loop.runner.paging is not None) is paged
    assert asked == [own]


def test_frames_go_before_sound_where_that_has_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: "a stream")
    monkeypatch.setattr(torch.cuda, "Event", lambda: "an event")
    assert (CodecStream(GPU, own=True).priority, CodecStream(GPU, own=False).priority) == (-1, 0)


def test_wrong_options_are_told() -> None:
    with pytest.raises(ConfigError, match="codec_stream must be shared or own, not 'both'"):
        EngineConfig(codec_stream="both")  # type: ignore[arg-type]
