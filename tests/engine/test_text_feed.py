"""A text that comes in pieces is spoken while it arrives, and sounds as if it had come at once."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from engine.conftest import MakeEngine, forget_requests
from engine.families import TOY, frames_each, same_frames
from engine.test_streams import wait_until_idle
from sonant import Engine, EngineConfig, FinishReason, Sampling, SpeechRequest
from sonant.engine.text_feed import TextFeed
from sonant.errors import Aborted, BadText, EngineClosed, EngineError

SIX = frames_each(6)
PIECES = [f"Piece number {n} is about the world." for n in range(5)]


def feed_of(engine: Engine, **options: object) -> TextFeed:
    return engine.feed(SpeechRequest(text="", **{"seed": 10, **options}))  # type: ignore[arg-type]


def test_pieces_are_the_same_speech_as_alone_in_order(make_engine: MakeEngine) -> None:
    engine = make_engine(**SIX)
    feed = feed_of(engine)
    for piece in PIECES:
        feed.add(piece)
    feed.end()
    speech = feed.stream.result()
    alone = [engine.speak(p, seed=10 + n) for n, p in enumerate(PIECES)]
    np.testing.assert_array_equal(speech.frames, np.concatenate([s.frames for s in alone]))
    assert len(speech.samples) == sum(len(s.samples) for s in alone)


def test_the_first_piece_is_heard_before_the_second_is_written(make_engine: MakeEngine) -> None:
    feed = feed_of(make_engine(**SIX))
    feed.add(PIECES[0])
    chunks = []
    while not chunks or not chunks[-1].ends_part:
        chunk = feed.stream.read(timeout_s=10)
        assert chunk is not None
        chunks.append(chunk)
    assert sum(len(c.frames) for c in chunks) == 6 and {c.part for c in chunks} == {0}
    with pytest.raises(TimeoutError):
        feed.stream.read(timeout_s=0.05)  # not over: more text may come
    feed.add(PIECES[1])
    feed.end()
    rest = list(feed.stream)
    assert {c.part for c in rest} == {1} and [c.ends_part for c in rest].count(True) == 1
    assert feed.stream.finish_reason is FinishReason.LENGTH


def test_the_second_piece_is_begun_before_the_first_has_ended(make_engine: MakeEngine) -> None:
    engine = make_engine(max_rows=4)
    feed = feed_of(engine, max_frames=60)
    feed.add(PIECES[0])
    feed.add(PIECES[1])
    feed.add(PIECES[2])
    feed.stream.read(timeout_s=10)
    most, deadline = 0, time.monotonic() + 5
    while most < 2 and time.monotonic() < deadline:
        most = max(most, engine.stats().running)
    feed.stream.abort()
    assert most == 2


def test_a_piece_longer_than_a_segment_is_one_part_to_its_reader(make_engine: MakeEngine) -> None:
    feed = feed_of(make_engine(segment_chars=40, **SIX))
    feed.add(" ".join(PIECES[:3]))
    feed.add(PIECES[3])
    feed.end()
    chunks = list(feed.stream)
    assert [c.part for c in chunks if c.ends_part] == [0, 1]
    assert sum(len(c.frames) for c in chunks if c.part == 0) == 18


def test_a_bad_piece_is_refused_and_the_others_are_spoken(make_engine: MakeEngine) -> None:
    feed = feed_of(make_engine(max_text_chars=100, **SIX))
    feed.add(PIECES[0])
    for bad in ("", "...", "x" * 101, "y" * 90):
        with pytest.raises(BadText):
            feed.add(bad)
    feed.add(PIECES[1])
    feed.end()
    assert len(feed.stream.result().frames) == 12


@pytest.mark.parametrize("before", [0, 1, 3])
def test_abort_ends_it_whatever_has_come(make_engine: MakeEngine, before: int) -> None:
    engine = make_engine()
    feed = feed_of(engine, max_frames=100)
    for piece in PIECES[:before]:
        feed.add(piece)
    if before:
        feed.stream.read(timeout_s=10)
    feed.stream.abort()
    with pytest.raises(Aborted):
        feed.stream.result()


def test_max_frames_bound_all_pieces(opened: list[Engine]) -> None:
    budget, brief = 60, Sampling(stop_chance=0.2)  # a piece may have more than its budget if the whole text may
    opened.append(engine := TOY.open({}, EngineConfig(segment_chars=40, **frames_each(budget))))
    pieces = [" ".join(PIECES[:2]), PIECES[2], PIECES[3]]
    whole = feed_of(engine, sampling=brief)
    for piece in pieces:
        whole.add(piece)
    whole.end()
    chunks = list(whole.stream)
    frames = np.concatenate([c.frames for c in chunks])
    seam = sum(len(c.frames) for c in chunks if c.part == 0)
    assert seam < budget
    for most in (seam - 1, seam, seam + 1):
        feed = feed_of(engine, max_frames=most, sampling=brief)
        for piece in pieces:
            feed.add(piece)
        chunks = list(feed.stream)
        same_frames(np.concatenate([c.frames for c in chunks]), frames[:most])
        assert [c.part for c in chunks if c.ends_part] == ([0] if most <= seam else [0, 1])
        assert feed.stream.finish_reason is FinishReason.LENGTH
        feed.add("And this is not heard of any more.")
        feed.end()
    wait_until_idle(engine)


def test_a_piece_after_the_last_frame_that_may_be_is_a_cut_and_no_piece_is_not(make_engine: MakeEngine) -> None:
    engine = make_engine(**SIX)
    for more in (True, False):
        feed = feed_of(engine, max_frames=len(engine.speak(PIECES[0], seed=10).frames))
        feed.add(PIECES[0])
        while not (chunk := feed.stream.read(timeout_s=10)) or not chunk.ends_part:
            pass
        if more:
            feed.add(PIECES[1])
        feed.end()
        assert not len(feed.stream.result().samples)
        assert feed.stream.finish_reason is FinishReason.LENGTH


def test_an_end_without_text_is_silence(make_engine: MakeEngine) -> None:
    feed = feed_of(make_engine())
    feed.end()
    assert not len(feed.stream.result().samples) and feed.stream.finish_reason is FinishReason.STOP


def test_adding_to_a_closed_engine_says_so(make_engine: MakeEngine) -> None:
    engine = make_engine()
    feed = feed_of(engine)
    engine.close()
    with pytest.raises(EngineClosed):
        feed.add(PIECES[0])
    with pytest.raises(EngineClosed):
        feed_of(engine)


def test_many_feeds_at_once_hear_their_own(make_engine: MakeEngine) -> None:
    engine = make_engine(max_rows=3, **SIX)
    alone = [engine.speak(p, seed=10 + n).frames for n, p in enumerate(PIECES)]
    heard: dict[int, np.ndarray] = {}

    def speak(name: int) -> None:
        feed = feed_of(engine)
        for piece in PIECES:
            feed.add(piece)
            time.sleep(0.01 * (name % 3))
        feed.end()
        heard[name] = feed.stream.result().frames

    threads = [threading.Thread(target=speak, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(heard) == 8
    for codes in heard.values():
        np.testing.assert_array_equal(codes, np.concatenate(alone))


@pytest.mark.parametrize("spoken", [False, True], ids=["no text yet", "idle"])
@pytest.mark.parametrize("fails", [False, True], ids=["closed", "failed"])
def test_a_reader_who_waits_is_told_when_the_engine_ends(make_engine: MakeEngine, spoken: bool, fails: bool) -> None:
    """Nothing is in flight for the feed, so only the end of the engine can wake its reader."""
    engine = make_engine(**SIX)
    feed = feed_of(engine)
    if spoken:
        feed.add(PIECES[0])
        while not (chunk := feed.stream.read(timeout_s=10)) or not chunk.ends_part:
            pass
        wait_until_idle(engine)
    if fails:
        engine.model.begin_frame = None  # type: ignore[assignment, method-assign]
        with pytest.raises(EngineError):
            engine.speak("hello")
        forget_requests(engine)
    else:
        engine.close()
    with pytest.raises(EngineError, match="load it again" if not fails else "failed while speaking"):
        feed.stream.read(timeout_s=5)
    with pytest.raises(EngineError):
        feed.add(PIECES[1])
