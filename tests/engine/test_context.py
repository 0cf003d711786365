"""A model that goes on from what was said before gets exactly that, from part to part of a long text."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from engine.conftest import forget_requests
from engine.test_streams import wait_until_idle
from sonant import Engine, EngineConfig, FinishReason, Sampling, SpeechRequest, Spoken
from sonant.engine.context import Context
from sonant.engine.request import Request
from sonant.engine.stream import SpeechStream
from sonant.errors import Aborted, BadRequest, BadText, EngineClosed, EngineError, Unsupported
from sonant.models.base import Prompt
from toy_family.model import ToyModel
from toy_family.modules import CHANNELS, DELAY

SENTENCES = [f"Sentence number {n} is about the world and speech." for n in range(5)]
TEXT, FRAMES = " ".join(SENTENCES), 6
OPTIONS = {"seed": 10, "max_frames": FRAMES, "sampling": Sampling(stop_chance=0.0)}


class Going(ToyModel):
    """Two parts of context; keeps every request that had some, and lets a test step in before it is laid out."""

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        super().__init__(config, device, context_segments=2)
        self.gone_on: list[SpeechRequest] = []
        self.threads: set[str] = set()
        self.first: Callable[[SpeechRequest], None] = lambda _: None

    def prompt(self, request: SpeechRequest) -> Prompt:
        if request.context:
            self.gone_on.append(request)
            self.threads.add(threading.current_thread().name)
            self.first(request)
        return super().prompt(request)


class Gate:
    """Holds a prompt back: `reached` is set when it is there, and it goes on with `open`."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self, _: SpeechRequest) -> None:
        self.reached.set()
        assert self.open.wait(20)


Make = Callable[..., tuple[Engine, Going]]


@pytest.fixture
def make(opened: list[Engine]) -> Make:
    def make(**options: int) -> tuple[Engine, Going]:
        config, device = EngineConfig(**{"segment_chars": 60, "max_rows": 4, **options}), torch.device("cpu")
        model = Going(config, device)
        opened.append(Engine(model, config, device))
        return opened[-1], model

    return make


@pytest.fixture
def gate() -> Iterator[Gate]:
    found = Gate()
    yield found
    found.open.set()  # a test that failed must not keep its engine from closing


def near(a: np.ndarray, b: np.ndarray) -> None:
    """Latents differ in their last digits from batch to batch, and each part goes on from those before it."""
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-2)


def stream_of(engine: Engine, **options: object) -> SpeechStream:
    return engine.stream(TEXT, **{**OPTIONS, **options})


def feed_all(engine: Engine) -> SpeechStream:
    feed = engine.feed(SpeechRequest(text="", **OPTIONS))  # type: ignore[arg-type]
    for sentence in SENTENCES:
        feed.add(sentence)
    feed.end()
    return feed.stream


WAYS = {"live": stream_of, "file": lambda engine: stream_of(engine, live=False), "feed": feed_all}


@pytest.mark.parametrize("steps_ahead", [0, 1])
@pytest.mark.parametrize("way", WAYS)
def test_each_part_goes_on_from_the_two_before_it(make: Make, way: str, steps_ahead: int) -> None:
    engine, model = make(steps_ahead=steps_ahead)
    whole = WAYS[way](engine).result()
    spoken = [Spoken(s, whole.frames[n * FRAMES : (n + 1) * FRAMES]) for n, s in enumerate(SENTENCES)]
    assert len(whole.frames) == len(SENTENCES) * FRAMES and model.threads == {"sonant-prompt_0"}
    assert [r.text for r in model.gone_on] == SENTENCES[1:]
    for n, request in enumerate(model.gone_on, 1):
        expected = spoken[max(0, n - 2) : n]
        assert [s.text for s in request.context] == [s.text for s in expected] and request.seed == 10 + n
        for said, wanted in zip(request.context, expected, strict=True):
            np.testing.assert_array_equal(said.frames, wanted.frames)
    # the same parts, spoken by somebody who says what was said before
    for n, sentence in enumerate(SENTENCES):
        alone = engine.submit(
            SpeechRequest(text=sentence, **{**OPTIONS, "seed": 10 + n}, context=tuple(spoken[:n][-2:]))  # type: ignore[arg-type]
        ).result()
        near(alone.frames, spoken[n].frames)


def test_context_is_heard(make: Make) -> None:
    engine, _ = make()
    whole = stream_of(engine, sampling=Sampling(stop_chance=0.0, temperature=0.0)).result()
    plain = engine.speak(SENTENCES[1], **{**OPTIONS, "sampling": Sampling(stop_chance=0.0, temperature=0.0)})
    assert np.abs(whole.frames[FRAMES : 2 * FRAMES] - plain.frames).max() > 0.1


def test_a_model_without_context_has_its_prompts_laid_out_before(opened: list[Engine]) -> None:
    config, device = EngineConfig(segment_chars=60), torch.device("cpu")
    opened.append(engine := Engine(ToyModel(config, device), config, device))
    before = threading.active_count()
    assert len(stream_of(engine).result().frames) == len(SENTENCES) * FRAMES
    assert threading.active_count() == before
    with pytest.raises(Unsupported, match="does not go on from what was said before"):
        engine.speak("hello", context=(Spoken("hi", np.zeros((2, CHANNELS), np.float32)),))


@pytest.mark.parametrize("fit", [2, 1, 0])
def test_the_oldest_context_is_dropped_where_there_is_no_room(make: Make, fit: int) -> None:
    own = len(SENTENCES[0]) + FRAMES + DELAY
    engine, _ = make(max_positions=own + fit * (len(SENTENCES[0]) + FRAMES), kv_tokens=1024)
    posted: list[Request] = []
    post = engine.loop.post

    def spy(request: Request) -> None:
        posted.append(request)
        post(request)

    engine.loop.post = spy  # type: ignore[method-assign]
    assert len(stream_of(engine).result().frames) == len(SENTENCES) * FRAMES
    context = [[said.text for said in request.speech.context] for request in posted]
    assert context == [SENTENCES[max(0, n - fit) : n] for n in range(len(SENTENCES))]


def test_what_cannot_be_spoken_is_told_before_anything_is(make: Make) -> None:
    engine, model = make(max_positions=80, kv_tokens=512)
    with pytest.raises(BadText, match="positions"):
        engine.stream(TEXT, **{**OPTIONS, "max_frames": 60})
    assert engine.stats().steps == 0 and not model.gone_on


def test_tokens_are_counted_without_what_was_said_before(make: Make) -> None:
    engine, _ = make()
    stream = stream_of(engine)
    assert stream.input_tokens == sum(map(len, SENTENCES))
    stream.result()
    assert stream.input_tokens == sum(map(len, SENTENCES))


def test_a_part_without_sound_was_not_said() -> None:
    context = Context(2, (), None, None)  # type: ignore[arg-type]
    for text, frames in (("one", [1, 2]), ("nothing", []), ("two", [3])):
        for count in frames:
            context.hear(np.full((count, CHANNELS), count, np.float32))
        context.end_part(text)
    assert [(s.text, len(s.frames)) for s in context.said] == [("one", 3), ("two", 3)]


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
    assert not closing.is_alive() and len(model.gone_on) == 1  # the others were not laid out any more


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


def test_a_feed_goes_on_from_what_was_said_long_ago(make: Make) -> None:
    engine, model = make()
    expected = stream_of(engine).result().frames
    feed = engine.feed(SpeechRequest(text="", **OPTIONS))  # type: ignore[arg-type]
    heard = []
    for sentence in SENTENCES:
        feed.add(sentence)
        ended = False
        while not ended:
            chunk = feed.stream.read(timeout_s=10)
            assert chunk is not None
            heard.append(chunk.frames)
            ended = chunk.ends_part
        wait_until_idle(engine)
    feed.end()
    assert not len(feed.stream.result().samples)
    near(np.concatenate(heard), expected)
    assert model.threads == {"sonant-prompt_0"}


def test_context_of_a_callers_own_is_the_beginning_of_a_long_texts(make: Make) -> None:
    engine, model = make()
    said = tuple(Spoken(f"before {n}", np.full((3, CHANNELS), 0.1 * n, np.float32)) for n in range(3))
    stream_of(engine, context=said).result()
    texts = [[s.text for s in request.context] for request in model.gone_on]
    assert texts[:3] == [["before 1", "before 2"], ["before 2", SENTENCES[0]], SENTENCES[:2]]


@pytest.mark.parametrize(
    ("context", "says"),
    [
        (["x"], "context must be tuple"),
        (("x",), "as Spoken, not str"),
        ((Spoken("x", np.zeros((0, CHANNELS), np.float32)),), r"frames in context must be \[frames, 3\]"),
        ((Spoken("x", np.zeros((2, 7), np.float32)),), r"not \[2, 7\]"),
    ],
)
def test_context_that_cannot_be_is_refused(make: Make, context: object, says: str) -> None:
    engine, _ = make()
    with pytest.raises(BadRequest, match=says):
        engine.speak("hello", context=context)
    with pytest.raises(BadRequest, match="a text and its frames"):
        Spoken("x", [1, 2])  # type: ignore[arg-type]


def test_uninitialised_memory_is_never_heard_through_context(make: Make) -> None:
    expected = stream_of(make()[0]).result().frames
    dirty, _ = make()
    for kv in dirty.loop.runner.kv.values():
        kv.fill_(float("nan"))
    for name in ("input", "draws", "frames"):
        dirty.loop.runner.rows.fields[name].fill_(float("nan"))
    near(stream_of(dirty).result().frames, expected)
