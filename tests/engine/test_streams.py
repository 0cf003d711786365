"""How sound reaches a caller: in threads, in event loops, cut short, and at shutdown."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import numpy as np
import pytest

from engine.conftest import MakeEngine, forget_requests
from engine.families import TOY, same_frames
from sonant import AudioChunk, Engine, EngineConfig, FinishReason, SpeechRequest
from sonant.engine.long_text import LongText
from sonant.engine.loop import Observer
from sonant.engine.stream import Mailbox
from sonant.errors import Aborted, EngineClosed, EngineError, Overloaded

TEXT = "hello the world and speech"


def wait_until_idle(engine: Engine, timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while engine.stats().running + engine.stats().waiting and time.monotonic() < deadline:
        time.sleep(0.002)
    assert engine.stats().running + engine.stats().waiting == 0


def test_chunks_come_in_order_and_add_up(any_engine: Engine) -> None:
    whole = any_engine.speak(TEXT, seed=1, max_frames=20)
    chunks = list(any_engine.stream(TEXT, seed=1, max_frames=20))
    size = any_engine.model.spec.samples_per_frame
    assert len(chunks) > 1 and len(chunks[0].samples) == size
    starts = [c.start_s for c in chunks]
    lengths = [len(c.samples) / c.sample_rate for c in chunks]
    np.testing.assert_allclose(starts, np.cumsum([0, *lengths[:-1]]))
    assert all(len(c.samples) == size * len(c.frames) for c in chunks)
    np.testing.assert_allclose(np.concatenate([c.samples for c in chunks]), whole.samples, rtol=0, atol=1e-5)


def test_an_event_loop_hears_many_streams_at_once(any_engine: Engine) -> None:
    async def hear(seed: int) -> np.ndarray:
        stream = any_engine.stream(TEXT, seed=seed, max_frames=8)
        return np.concatenate([chunk.frames async for chunk in stream])

    async def hear_all() -> list[np.ndarray]:
        return await asyncio.gather(*(hear(n) for n in range(6)))

    for n, heard in enumerate(asyncio.run(hear_all())):
        same_frames(heard, any_engine.speak(TEXT, seed=n, max_frames=8).frames)


def test_awaited_result_is_the_same_speech(any_engine: Engine) -> None:
    async def ask() -> np.ndarray:
        return (await any_engine.stream(TEXT, seed=9, max_frames=6).aresult()).frames

    same_frames(asyncio.run(ask()), any_engine.speak(TEXT, seed=9, max_frames=6).frames)


def test_threads_may_submit_at_the_same_time(any_engine: Engine) -> None:
    heard: dict[int, np.ndarray] = {}

    def ask(n: int) -> None:
        heard[n] = any_engine.speak(TEXT, seed=n, max_frames=6).frames

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for n in range(8):
        same_frames(heard[n], any_engine.speak(TEXT, seed=n, max_frames=6).frames)


def test_abort_frees_the_row_soon_and_keeps_what_was_heard(any_engine: Engine) -> None:
    stream = any_engine.stream(TEXT, seed=1, max_frames=400)
    first = stream.read()
    assert first is not None and 0 < len(first.frames) < 400
    stream.abort()
    wait_until_idle(any_engine, 1.0)
    list(stream)
    assert stream.finish_reason is FinishReason.ABORT


def test_abort_before_admission_and_after_the_end_are_harmless(make_any: MakeEngine) -> None:
    engine = make_any(max_rows=1)
    running = engine.stream(TEXT, seed=1, max_frames=10)
    waiting = engine.stream(TEXT, seed=1, max_frames=10)
    waiting.abort()
    with pytest.raises(Aborted):
        waiting.result()
    running.result()
    running.abort()
    assert running.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)


def test_leaving_with_or_dropping_the_stream_aborts(any_engine: Engine) -> None:
    with any_engine.stream(TEXT, seed=1, max_frames=400) as stream:
        stream.read()
    wait_until_idle(any_engine)
    dropped = any_engine.stream(TEXT, seed=1, max_frames=400)
    dropped.read()
    del dropped
    gc.collect()
    wait_until_idle(any_engine)


def test_a_stream_that_is_dropped_waits_for_no_lock(make_engine: MakeEngine) -> None:
    """The garbage collector may run anywhere: for example with the step loop's lock held, while another thread that
    holds the text's lock waits for it."""
    engine = make_engine(segment_chars=20, max_rows=1)
    dropped = [engine.stream("hello the world. speech and the user.", max_frames=400)]
    dropped[0].read()
    (text,) = engine.loop._open
    assert isinstance(text, LongText)

    def drop() -> None:
        with engine.loop._wake:
            dropped.clear()

    dropper = threading.Thread(target=drop)
    with text.lock:
        dropper.start()
        dropper.join(5)
        assert not dropper.is_alive(), "it waits for the text's lock, and holds up everybody else"
    wait_until_idle(engine)


def test_a_cancelled_task_aborts_its_stream(any_engine: Engine) -> None:
    async def listen(heard: asyncio.Event) -> None:
        async with any_engine.stream(TEXT, seed=1, max_frames=400) as stream:
            async for _ in stream:
                heard.set()
                await asyncio.Event().wait()  # never set: the task can only be cancelled

    async def cancel() -> None:
        heard = asyncio.Event()
        task = asyncio.create_task(listen(heard))
        await heard.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    wait_until_idle(any_engine)


def test_close_drains_when_asked_and_aborts_when_not(make_any: MakeEngine) -> None:
    draining = make_any()
    stream = draining.stream(TEXT, seed=1, max_frames=12)
    draining.close(drain_s=30)
    assert stream.result().finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
    with pytest.raises(EngineClosed, match="closed"):
        draining.speak(TEXT)
    aborting = make_any()
    streams = [aborting.stream(TEXT, seed=n, max_frames=400) for n in range(12)]
    streams[0].read()
    aborting.close()
    for s in streams:
        with pytest.raises(Aborted):
            s.result()


def test_a_drain_may_take_as_long_as_it_takes(opened: list[Engine]) -> None:
    opened.append(engine := TOY.open({}, EngineConfig(max_rows=1)))
    streams = [engine.stream(TEXT, seed=n, max_frames=12) for n in range(3)]
    engine.close(drain_s=float("inf"))
    assert not engine.loop.alive
    assert all(stream.result().finish_reason is not FinishReason.ABORT for stream in streams)


def test_who_comes_at_the_moment_when_the_engine_ends_is_told(opened: list[Engine]) -> None:
    opened.append(engine := TOY.open({}, EngineConfig()))
    loop, told = engine.loop, list[bool]()
    wait_for_messages, request = loop._wait_for_messages, engine._request(SpeechRequest(text=TEXT), Mailbox())

    def one_comes_then(observer: Observer | None) -> bool:
        goes_on = wait_for_messages(observer)
        if not goes_on:
            with pytest.raises(EngineClosed):
                loop.post(request)
            told.append(True)
        return goes_on

    loop._wait_for_messages = one_comes_then  # type: ignore[method-assign]
    engine.speak(TEXT, max_frames=1)  # the loop calls the replacement from now on
    engine.close()
    assert told == [True]


def test_a_failing_step_ends_every_request_with_an_error(make_any: MakeEngine) -> None:
    engine = make_any(max_rows=1)
    stream, waiting = (engine.stream(TEXT, seed=1, max_frames=400) for _ in range(2))
    stream.read()

    def broken(*_: object) -> None:
        raise RuntimeError("the device fell off")

    engine.model.begin_frame = broken  # type: ignore[assignment]
    for s in (stream, waiting):
        with pytest.raises(EngineError, match="the device fell off"):
            s.result()
    with pytest.raises(EngineClosed):
        engine.speak(TEXT)
    forget_requests(engine)


def test_a_full_queue_refuses(make_any: MakeEngine) -> None:
    engine = make_any(max_rows=1, max_waiting=2)
    streams = [engine.stream(TEXT, seed=1, max_frames=400)]
    streams[0].read()
    streams += [engine.stream(TEXT, seed=1, max_frames=5) for _ in range(2)]
    with pytest.raises(Overloaded, match="2 requests are waiting"):
        engine.stream(TEXT)
    for stream in streams:
        stream.abort()


def test_a_queue_is_for_those_who_find_no_row(make_any: MakeEngine) -> None:
    """Requests come all at once, before a step can have looked at any of them."""
    engine = make_any(max_rows=2, max_waiting=1)
    streams = [engine.stream(TEXT, seed=1, max_frames=400) for _ in range(3)]
    for stream in streams:
        stream.abort()


class Refuses:
    """A listener's sink that cannot take sound, the error or the end."""

    def __init__(self, *refused: str) -> None:
        self.refused, self.told = refused, list[str]()

    def _take(self, what: str) -> None:
        self.told.append(what)
        if what in self.refused:
            raise RuntimeError("Event loop is closed")

    def push(self, chunk: object) -> None:
        self._take("push")

    def finish(self, reason: object) -> None:
        self._take("finish")

    def fail(self, error: Exception) -> None:
        self._take("fail")


@pytest.mark.parametrize("refused", [("push",), ("push", "fail"), ("finish",), ("finish", "fail")], ids=" and ".join)
def test_a_listener_who_cannot_be_given_their_sound_ends_alone(make_any: MakeEngine, refused: tuple[str, ...]) -> None:
    engine = make_any(max_rows=2)
    expected = engine.speak(TEXT, seed=2, max_frames=12).frames
    neighbour = engine.stream(TEXT, seed=2, max_frames=12)
    sink = Refuses(*refused)
    engine.loop.post(engine._request(SpeechRequest(text=TEXT, seed=1, max_frames=8), sink))
    same_frames(neighbour.result().frames, expected)
    deadline = time.monotonic() + 5
    while sink.told[-1:] != ["fail"]:  # its row is freed before the error is sent
        assert time.monotonic() < deadline, sink.told
        time.sleep(0.002)
    wait_until_idle(engine)
    assert sink.told.count("push") == 1 or refused[0] == "finish"
    same_frames(engine.speak(TEXT, seed=2, max_frames=12).frames, expected)


def test_an_event_loop_that_closes_at_that_moment_is_no_error() -> None:
    """The loop may close between the check whether it is open and the call."""
    mailbox, loop = Mailbox(), asyncio.new_event_loop()
    waiting = loop.create_task(mailbox.atake())
    loop.run_until_complete(asyncio.sleep(0))
    waiting.cancel()
    loop.run_until_complete(asyncio.gather(waiting, return_exceptions=True))
    loop.close()
    loop.is_closed = lambda: False  # type: ignore[method-assign]
    chunk = AudioChunk(np.zeros(8, np.float32), 1000, 0.0, np.zeros((1, 2), np.int32))
    mailbox.push(chunk)
    assert mailbox.take(1) is chunk
    del loop.is_closed  # type: ignore[method-assign]
