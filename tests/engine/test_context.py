"""A model that takes context gets exactly what was said before, from part to part of a long text."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from engine.families import frames_each
from engine.going_on import FRAMES, OPTIONS, SENTENCES, TEXT, WAYS, Make, near, stream_of
from engine.test_streams import wait_until_idle
from sonant import Engine, EngineConfig, Sampling, SpeechRequest, Spoken
from sonant.engine.context import Context
from sonant.engine.request import Request
from sonant.errors import BadRequest, BadText, Unsupported
from toy_family.model import ToyModel
from toy_family.sizes import CHANNELS, DELAY


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
    # The same parts, with the context given by the caller
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
    config, device = EngineConfig(segment_chars=60, **frames_each(FRAMES, frame_s=0.04)), torch.device("cpu")
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
    engine, model = make(max_positions=len(SENTENCES[0]), kv_tokens=512)
    with pytest.raises(BadText, match="positions"):
        engine.stream(TEXT, **OPTIONS)
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
