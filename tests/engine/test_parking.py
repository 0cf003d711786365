"""A request that was parked sounds as if it had kept its row, and ends as cleanly."""

from __future__ import annotations

import time
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from engine.conftest import MakeEngine, forget_requests
from engine.families import TOY, Family, same, same_frames
from engine.random_parking import RandomParking
from engine.test_rows import SPEC_OF_LINES
from engine.test_scheduler import ask, make
from engine.test_streams import wait_until_idle
from sonant import Engine, EngineConfig, FinishReason
from sonant.engine.parking import Parking
from sonant.engine.request import State
from sonant.engine.rows import Rows
from sonant.errors import Aborted, EngineClosed, EngineError, TooLate
from sonant.models.spec import Field


def test_all_that_a_row_holds_is_copied_whatever_its_shape() -> None:
    fields = (Field("ring", (2, 3), torch.float32, row_dim=1), Field("gain", (), torch.float32))
    spec = replace(SPEC_OF_LINES, state=(*SPEC_OF_LINES.state, *fields))
    rows = Rows(spec, 3, 2, torch.device("cpu"))
    for number, tensor in enumerate([rows.slab, *(rows.fields[f.name] for f in rows.tensors)]):
        tensor.copy_(torch.arange(tensor.numel()).reshape(tensor.shape) + 1000 * number)
    before = [content.clone() for content in rows.contents(0)]
    others = [[content.clone() for content in rows.contents(n)] for n in (1, 3)]
    parking, request = Parking(rows, 1), ask(make())
    assert parking.has_room()
    request.row = 0
    parking.save(request)
    for content in rows.contents(0):
        content.fill_(7)
    parking.restore(request, 2)
    assert all(map(torch.equal, before, rows.contents(2)))
    for wanted, n in zip(others, (1, 3), strict=True):
        assert all(map(torch.equal, wanted, rows.contents(n)))


def test_memory_is_taken_once_and_lack_of_it_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    parking = Parking(Rows(SPEC_OF_LINES, 3, 2, torch.device("cpu")), 2)
    scheduler = make()
    first, second = ask(scheduler), ask(scheduler)
    first.row, second.row = 0, 1
    assert parking.has_room()
    parking.save(first)

    def none_left(*_: object) -> None:
        raise torch.OutOfMemoryError("none left")

    monkeypatch.setattr(torch, "empty_like", none_left)
    assert not parking.has_room()
    parking.drop(first)
    assert parking.has_room()  # memory that was allocated is used again
    parking.save(second)
    assert not parking.has_room()


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_who_is_parked_again_and_again_sounds_the_same_to_the_bit(
    make_any: MakeEngine, family: Family, steps_ahead: int
) -> None:
    """Each request runs alone, in chunks of one frame, since sums over other batches or chunks differ in their last
    bits."""
    engine = make_any(max_rows=3, steps_ahead=steps_ahead, chunk_s=(0.01,))
    requests = [{**family.request(n), "max_frames": 12} for n in (3, 7)]
    kept = [engine.speak(**request) for request in requests]
    drawn = RandomParking(engine, seed=1, share=0.8)
    for request, expected in zip(requests, kept, strict=True):
        speech = engine.speak(**request)
        np.testing.assert_array_equal(speech.frames, expected.frames)
        np.testing.assert_array_equal(speech.samples, expected.samples)
        assert speech.finish_reason is expected.finish_reason
    assert engine.telemetry.parkings > 2
    assert (drawn.parked_in_flight > 0) == (steps_ahead > 0)


def test_a_crowd_that_is_parked_at_random_with_aborts_is_each_its_own(make_any: MakeEngine, family: Family) -> None:
    engine = make_any(max_rows=3, steps_ahead=1, max_parked=8)
    alone = [engine.speak(**family.request(n, 8)) for n in range(5)]
    RandomParking(engine, seed=2)
    streams = [engine.stream(**family.request(n, 8)) for n in range(5)]
    gone = [engine.stream(**{**family.request(n), "max_frames": 60}) for n in range(3)]
    for n, stream in enumerate(gone):
        time.sleep(0.01)
        if n % 2:
            stream.read()
        stream.abort()
    for expected, stream in zip(alone, streams, strict=True):
        same(expected, stream.result())
    for stream in gone:
        list(stream)
        assert stream.finish_reason in (FinishReason.ABORT, FinishReason.STOP)
    wait_until_idle(engine)
    assert engine.stats().parked == 0


def all_parked(engine: Engine) -> None:
    """Park every running request for good."""
    sharing = engine.loop.scheduler.sharing

    def share(now_s: float) -> None:
        for request in list(sharing.running):
            if request.state is State.DECODING and request.emitted and sharing.parking.has_room():
                sharing._park(request, now_s)

    sharing.share = share  # type: ignore[method-assign]
    deadline = time.monotonic() + 10
    while not (stats := engine.stats()).parked or stats.running:
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_an_abort_of_the_parked_is_at_once(make_engine: MakeEngine, steps_ahead: int) -> None:
    engine = make_engine(max_rows=2, steps_ahead=steps_ahead)
    streams = [engine.stream("hello the world", seed=n, max_frames=300) for n in range(2)]
    for stream in streams:
        stream.read()
    all_parked(engine)
    for stream in streams:
        stream.abort()
        list(stream)
        assert stream.finish_reason is FinishReason.ABORT
    wait_until_idle(engine)
    stats = engine.stats()
    assert (stats.parked, stats.free_blocks, stats.free_rows) == (0, stats.blocks, stats.rows)


def test_an_engine_that_closes_or_fails_tells_the_parked(make_engine: MakeEngine) -> None:
    engine = make_engine(max_rows=2)
    stream = engine.stream("hello the world", seed=1, max_frames=300)
    stream.read()
    all_parked(engine)
    engine.close(drain_s=0.05)
    with pytest.raises(Aborted):
        stream.result()
    engine = make_engine(max_rows=2)
    stream = engine.stream("hello the world", seed=1, max_frames=300)
    stream.read()
    all_parked(engine)
    engine.loop.scheduler.plan = None  # type: ignore[assignment, method-assign]
    engine.loop.wake()
    with pytest.raises(EngineError, match="failed while speaking"):
        stream.result()
    forget_requests(engine)


def test_who_cannot_be_given_their_row_back_is_told_that_the_engine_failed(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Parking, "restore", Mock(side_effect=RuntimeError("the device fell off")))
    engine = make_engine(max_rows=1)
    RandomParking(engine, seed=5)
    stream = engine.stream("hello the world", seed=1, max_frames=300)
    with pytest.raises(EngineError, match="the device fell off"):
        while stream.read(timeout_s=10):
            pass
    forget_requests(engine)


def test_a_drain_lets_the_parked_finish(make_engine: MakeEngine) -> None:
    engine = make_engine(max_rows=1)
    expected = engine.speak("hello the world", seed=6, max_frames=40, live=True)
    RandomParking(engine, seed=5)
    stream = engine.stream("hello the world", seed=6, max_frames=40)
    first = stream.read()
    assert first is not None
    engine.close(drain_s=20)
    same_frames(expected.frames, np.concatenate([first.frames, stream.result().frames]))
    assert engine.telemetry.parkings


def test_a_newcomer_is_heard_while_long_texts_have_every_row(opened: list[Engine]) -> None:
    opened.append(engine := TOY.open({}, EngineConfig(max_rows=2, segment_chars=60)))
    texts = " ".join(f"Sentence number {n} is about the world and speech." for n in range(40))
    files = [engine.stream(texts, seed=n, live=False) for n in range(2)]
    while engine.stats().free_rows:
        time.sleep(0.002)
    for seed in range(3):
        newcomer = engine.stream("hello", seed=seed, max_frames=3)
        assert newcomer.read(timeout_s=10) is not None
        assert all(stream.finish_reason is None for stream in files)
    for stream in files:
        stream.abort()


def test_who_waits_past_their_promise_is_told_when_to_come_back(make_engine: MakeEngine) -> None:
    engine = make_engine(max_rows=1, max_parked=0, segment_chars=60)
    with engine.stream("hello the world", seed=1, max_frames=600) as holder:
        holder.read()
        text = " ".join(f"Sentence number {n} is about the world." for n in range(3))
        late = [
            engine.stream(said, seed=2, max_frames=4, first_audio_within_s=0.2, live=live)
            for said in ("hello", text)
            for live in (True, False)
        ]
        patient = engine.stream("hello", seed=2, max_frames=4)
        for stream in late:
            began_s = time.monotonic()
            with pytest.raises(TooLate, match=r"within 0\.2 s") as told:
                stream.result()
            assert time.monotonic() - began_s < 5 and told.value.retry_s >= 1
        assert holder.finish_reason is None and patient.finish_reason is None
    assert len(patient.result().frames)
    spoken = engine.speak(text, seed=2, max_frames=4, first_audio_within_s=5.0)
    assert len(spoken.frames) == 4  # the promise is for the first part only
    engine.close()
    with pytest.raises(EngineClosed):
        engine.speak("hello")
