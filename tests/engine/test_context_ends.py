"""A text whose parts are each other's context ends like any other: aborted, closed, failed, or read slowly."""

from __future__ import annotations

import random
import threading
import time

import pytest

from engine.conftest import forget_requests
from engine.going_on import FRAMES, OPTIONS, SENTENCES, TEXT, WAYS, Gate, Make, near, stream_of
from engine.test_streams import wait_until_idle
from sonant import FinishReason, SpeechRequest
from sonant.errors import Aborted, BadText, EngineClosed, EngineError


@pytest.mark.parametrize(
    ("raised", "error", "says"),
    [
        (BadText("these words cannot follow"), BadText, "these words cannot follow"),
        (RuntimeError("a bug"), EngineError, "the next part of the text could not be laid out: RuntimeError: a bug"),
    ],
)
@pytest.mark.parametrize("way", WAYS)
def test_an_error_in_laying_out_ends_that_text_alone(
    make: Make, way: str, raised: Exception, error: type[Exception], says: str
) -> None:
    engine, model = make()
    expected = engine.speak(SENTENCES[0], **OPTIONS).frames

    def third(request: SpeechRequest) -> None:
        if request.text == SENTENCES[2]:
            raise raised

    model.first = third
    neighbour = engine.stream(" ".join(SENTENCES[:2]), **OPTIONS)
    stream = WAYS[way](engine)
    with pytest.raises(error, match=says):
        stream.result()
    assert len(neighbour.result().frames) == 2 * FRAMES
    wait_until_idle(engine)
    near(engine.speak(SENTENCES[0], **OPTIONS).frames, expected)


def test_abort_while_laying_out_is_at_once(make: Make, gate: Gate) -> None:
    engine, model = make()
    model.first = gate
    stream = stream_of(engine)
    assert gate.reached.wait(10)
    assert engine.stats().waiting == 1 and engine.stats().running == 0
    stream.abort()
    assert stream.finish_reason is FinishReason.ABORT
    gate.open.set()
    wait_until_idle(engine)
    with pytest.raises(Aborted):
        stream.result()
    assert [r.text for r in model.gone_on] == SENTENCES[1:2]


def test_aborts_at_any_moment_leave_nothing_behind(make: Make) -> None:
    engine, _ = make()
    began_s = time.monotonic()
    expected = stream_of(engine).result()
    took_s = time.monotonic() - began_s
    chance = random.Random(3)
    for _ in range(25):
        stream, neighbour = stream_of(engine), engine.stream(TEXT, **{**OPTIONS, "live": False})
        time.sleep(chance.random() * 1.5 * took_s)
        stream.abort()
        list(stream)
        assert stream.finish_reason in (FinishReason.ABORT, FinishReason.LENGTH)
        near(neighbour.result().frames, expected.frames)
        wait_until_idle(engine)


def test_closing_while_laying_out_tells_the_reader(make: Make, gate: Gate) -> None:
    engine, model = make()
    model.first = gate
    streams = [stream_of(engine, seed=n) for n in range(3)]
    assert gate.reached.wait(10)
    closing = threading.Thread(target=engine.close)
    closing.start()
    for stream in streams:
        with pytest.raises((EngineClosed, Aborted)):
            stream.result()
    gate.open.set()
    closing.join(10)
    assert not closing.is_alive() and len(model.gone_on) == 1  # the others are no longer laid out


@pytest.mark.parametrize("way", ["live", "file"])
def test_draining_waits_for_what_is_being_laid_out(make: Make, gate: Gate, way: str) -> None:
    engine, model = make()
    model.first = gate
    stream = WAYS[way](engine)
    assert gate.reached.wait(10)
    wait_until = time.monotonic() + 0.2
    closing = threading.Thread(target=engine.close, kwargs={"drain_s": 30})
    closing.start()
    closing.join(max(0.0, wait_until - time.monotonic()))
    assert closing.is_alive() and engine.loop.alive
    gate.open.set()
    assert len(stream.result().frames) == len(SENTENCES) * FRAMES
    closing.join(10)
    assert not closing.is_alive()


def test_a_step_that_fails_meanwhile_ends_the_text(make: Make, gate: Gate) -> None:
    engine, model = make()
    model.first = gate
    stream = stream_of(engine)
    assert gate.reached.wait(10)
    engine.model.begin_frame = None  # type: ignore[assignment, method-assign]
    with pytest.raises(EngineError):
        engine.speak("hello")
    with pytest.raises(EngineError, match="failed while speaking"):
        stream.result()
    gate.open.set()
    engine.close()
    forget_requests(engine)
    assert engine.stats().waiting == 0


def test_many_long_texts_at_once_are_each_their_own(make: Make) -> None:
    engine, _ = make(max_rows=3)
    alone = [stream_of(engine, seed=n).result().frames for n in range(8)]
    together = [stream_of(engine, seed=n, live=n % 2 == 0) for n in range(8)]
    for expected, stream in zip(alone, together, strict=True):
        near(stream.result().frames, expected)


def test_who_reads_slowly_is_held_back_and_loses_nothing(make: Make) -> None:
    engine, model = make()
    expected = stream_of(engine).result().frames
    model.gone_on.clear()
    stream = stream_of(engine)
    stream.limit_unread(1e-3)
    wait_until_idle(engine)
    time.sleep(0.1)
    assert not model.gone_on and stream.finish_reason is None  # the second part is not even laid out
    near(stream.result().frames, expected)
