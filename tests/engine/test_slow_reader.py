"""If a long text is not read, the engine stops speaking it; its reader loses nothing, and others are not held up."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from engine.conftest import MakeEngine
from engine.families import frames_each
from engine.test_scheduler import SPEC
from engine.test_streams import wait_until_idle
from sonant import AudioChunk, Engine, FinishReason, SpeechRequest
from sonant.engine.long_text import LongText
from sonant.engine.part_sink import PartSink
from sonant.engine.request import Request
from sonant.engine.stream import Mailbox, SpeechStream
from sonant.errors import Aborted, BadRequest, EngineClosed
from sonant.models.prompt import Prompt

PARTS, FRAMES, FRAME_S = 8, 6, 0.08
TEXT = " ".join(f"Sentence number {n:02} is about the world and speech." for n in range(PARTS))
SPLIT = {"segment_chars": 60, **frames_each(FRAMES)}
LIMIT_S = 0.7
BOUND_S = LIMIT_S + FRAMES * FRAME_S  # the last part begins while there is still room


def listened(engine: Engine, seed: int = 10, limit_s: float = LIMIT_S) -> SpeechStream:
    stream = engine.stream(TEXT, seed=seed)
    stream.limit_unread(limit_s)
    return stream


def wait_until_still(engine: Engine) -> None:
    """Wait until the engine is idle, and not just between two parts."""
    steps, deadline = -1, time.monotonic() + 10
    while steps != engine.stats().steps:
        assert time.monotonic() < deadline
        steps = engine.stats().steps
        time.sleep(0.1)
    wait_until_idle(engine)


def held_back(engine: Engine) -> SpeechStream:
    """A stream whose reader has stopped, with most of its text unspoken."""
    stream = listened(engine)
    stream.read(timeout_s=10)
    wait_until_still(engine)
    assert stream.finish_reason is None and LIMIT_S < stream.unread_s <= BOUND_S
    return stream


def test_who_stops_reading_stops_the_engine_and_gets_every_sample_when_they_read_on(make_engine: MakeEngine) -> None:
    engine = make_engine(**SPLIT, max_rows=1)
    whole = engine.speak(TEXT, seed=10)
    stream = listened(engine)
    chunks, pauses = [], 0
    while (chunk := stream.read(timeout_s=10)) is not None:
        chunks.append(chunk)
        if stream.finish_reason is None and len(chunks) % 9 == 0:
            wait_until_still(engine)
            assert stream.unread_s <= BOUND_S
            pauses += stream.finish_reason is None
    assert pauses > 1
    np.testing.assert_array_equal(np.concatenate([c.frames for c in chunks]), whole.frames)
    np.testing.assert_allclose(np.concatenate([c.samples for c in chunks]), whole.samples, rtol=0, atol=1e-5)
    assert stream.unread_s == 0 and stream.finish_reason is whole.finish_reason


def test_others_are_spoken_to_meanwhile(make_engine: MakeEngine) -> None:
    engine = make_engine(**SPLIT, max_rows=1)
    stream = held_back(engine)
    assert len(engine.speak("hello", seed=1, max_frames=2).frames) == 2
    assert len(stream.result().frames) > FRAMES


def test_who_reads_in_an_event_loop_is_held_back_and_goes_on(make_engine: MakeEngine) -> None:
    engine = make_engine(**SPLIT)
    stream = held_back(engine)
    rest = asyncio.run(asyncio.wait_for(stream.aresult(), 20))
    assert len(rest.frames) > PARTS * FRAMES / 2


def test_a_limit_below_any_chunk_starves_nobody(make_engine: MakeEngine) -> None:
    engine = make_engine(**SPLIT)
    whole = engine.speak(TEXT, seed=10)
    np.testing.assert_array_equal(listened(engine, limit_s=1e-3).result().frames, whole.frames)


@pytest.mark.parametrize("limit_s", [-0.1, float("nan")])
def test_a_limit_that_no_reading_can_reach_is_refused(make_engine: MakeEngine, limit_s: float) -> None:
    engine = make_engine(**SPLIT)
    stream = engine.stream(TEXT, seed=10)
    with pytest.raises(BadRequest, match="max_unread_s must be at least 0"):
        stream.limit_unread(limit_s)
    while stream.read(timeout_s=10):
        pass  # all of it comes


def test_a_text_that_is_still_being_written_is_held_back_too(make_engine: MakeEngine) -> None:
    engine = make_engine(**SPLIT)
    feed = engine.feed(SpeechRequest(text="", seed=10))
    feed.stream.limit_unread(LIMIT_S)
    feed.add(TEXT)
    feed.end()
    feed.stream.read(timeout_s=10)
    wait_until_still(engine)
    assert feed.stream.finish_reason is None
    assert feed.stream.unread_s <= BOUND_S + FRAMES * FRAME_S  # two pieces are spoken at a time
    assert len(feed.stream.result().frames) > PARTS * FRAMES / 2


def test_a_file_is_made_whether_it_is_read_or_not(make_engine: MakeEngine) -> None:
    engine = make_engine(**{**SPLIT, **frames_each(2)})
    text = " ".join([TEXT] * 6)
    stream = engine.stream(text, seed=10, live=False)
    stream.limit_unread(1e-3)
    deadline = time.monotonic() + 20
    while stream.finish_reason is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert len(text) > 2000 and stream.unread_s > 6 * PARTS * FRAME_S
    np.testing.assert_array_equal(stream.result().frames, engine.speak(text, seed=10).frames)


def test_abort_of_one_who_is_held_back_is_at_once(make_engine: MakeEngine) -> None:
    engine = make_engine(**SPLIT)
    stream = held_back(engine)
    stream.abort()
    assert stream.finish_reason is FinishReason.ABORT
    with pytest.raises(Aborted):
        stream.result()
    with held_back(engine) as left:
        pass
    assert left.finish_reason is FinishReason.ABORT
    wait_until_idle(engine)


def test_an_engine_that_is_gone_when_they_read_on_ends_the_stream_with_an_error(make_engine: MakeEngine) -> None:
    engine = make_engine(**SPLIT)
    stream = held_back(engine)
    engine.close()
    with pytest.raises(EngineClosed):
        stream.result()
    assert stream.unread_s == 0  # everything that was made was read


def test_a_drain_waits_for_who_is_held_back_and_reads_on(make_engine: MakeEngine) -> None:
    engine = make_engine(**SPLIT)
    stream = held_back(engine)
    closer = threading.Thread(target=engine.close, kwargs={"drain_s": 30})
    closer.start()
    closer.join(0.2)
    assert closer.is_alive() and stream.result().finish_reason is FinishReason.LENGTH
    closer.join(10)
    assert not closer.is_alive()


@pytest.mark.parametrize("leave", ["abort", "drop"])
def test_a_drain_does_not_wait_for_who_is_held_back_and_leaves(make_engine: MakeEngine, leave: str) -> None:
    engine = make_engine(**SPLIT)
    streams = [held_back(engine)]
    closer = threading.Thread(target=engine.close, kwargs={"drain_s": 30})
    closer.start()
    if leave == "abort":
        streams[0].abort()
    streams.clear()
    closer.join(10)
    assert not closer.is_alive()


def test_many_who_read_slowly_hear_their_own(make_engine: MakeEngine) -> None:
    engine = make_engine(**SPLIT, max_rows=3)
    alone = {seed: engine.speak(TEXT, seed=seed).frames for seed in (20, 30)}
    streams = [listened(engine, seed=(20, 30)[n % 2]) for n in range(6)]
    heard: dict[int, np.ndarray] = {}
    most_s = [0.0] * len(streams)

    def read(n: int) -> None:
        codes = []
        while (chunk := streams[n].read(timeout_s=30)) is not None:
            codes.append(chunk.frames)
            most_s[n] = max(most_s[n], streams[n].unread_s)
            time.sleep(0.002 * n)
        heard[n] = np.concatenate(codes)

    threads = [threading.Thread(target=read, args=(n,)) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    wait_until_still(engine)
    assert streams[5].finish_reason is None  # it was not read, which held up no other reader
    streams[5].abort()
    assert sorted(heard) == list(range(5)) and max(most_s) <= BOUND_S
    for n, codes in heard.items():
        np.testing.assert_array_equal(codes, alone[(20, 30)[n % 2]])


def test_the_part_after_a_pause_knows_what_its_listener_has_buffered() -> None:
    """Otherwise the engine would hurry as for a listener who has run dry."""
    mailbox, submitted = Mailbox(), []
    mailbox.max_unread_s = 0.1
    whole = LongText(mailbox, SPEC, SimpleNamespace(post=submitted.append), at_once=1, live=True)  # type: ignore[arg-type]
    long_ago_s = time.monotonic() - 100
    speech = SpeechRequest(text="x")
    prompt = Prompt(length=2, keys=np.zeros((2, 1), np.int32), staged={}, max_frames=9, payload=None)
    parts = [Request(speech, prompt, PartSink(whole, n), 0.0) for n in range(2)]
    whole.start(parts)
    parts[0].first_audio_s = long_ago_s
    for _ in range(3):
        whole.on_chunk(0, AudioChunk(np.zeros(100, np.float32), 1000, 0.0, np.zeros((1, 16), np.int32)))
    whole.on_finish(0, FinishReason.STOP)
    assert submitted == parts[:1]
    mailbox.take(1)
    assert submitted == parts[:1]
    mailbox.take(1)
    mailbox.take(1)
    assert submitted == parts
    assert (parts[1].first_audio_s or 0) > long_ago_s + 99 and 0 < parts[1].heard_s <= 0.1
