"""A long text is spoken in parts and heard as one."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from engine.conftest import MakeEngine
from engine.families import frames_each, same, same_frames
from engine.test_scheduler import SPEC
from sonant import AudioChunk, FinishReason, SpeechRequest, Spoken
from sonant.audio.join import FADE_S
from sonant.engine.long_text import LongText
from sonant.engine.stream import Mailbox
from sonant.errors import Aborted, BadText, NothingToSay
from sonant.models.prompt import Prompt

SENTENCES = [f"Sentence number {n} is about the world and speech." for n in range(6)]


@pytest.mark.parametrize("live", [True, False])
def test_parts_are_the_same_speech_as_alone_in_order(make_any: MakeEngine, live: bool) -> None:
    engine = make_any(segment_chars=60, **frames_each(6))
    text = " ".join(SENTENCES)
    whole = engine.stream(text, seed=10, live=live).result()
    context: list[Spoken] = []  # used by a model that takes context
    kept, parts = engine.model.spec.context_segments, []
    for n, sentence in enumerate(SENTENCES):
        before = tuple(context[-kept:]) if kept else ()
        parts.append(engine.speak(sentence, seed=10 + n, context=before))
        context.append(Spoken(sentence, parts[-1].frames))
    same_frames(whole.frames, np.concatenate([p.frames for p in parts]))
    apart = np.concatenate([p.samples for p in parts])
    assert len(whole.samples) == len(apart)
    # Only the seams differ.
    exact = whole.frames.dtype.kind == "i"  # latents differ by batch in their last digits
    changed = np.flatnonzero(np.abs(whole.samples - apart) > (1e-6 if exact else 1e-4))
    seams = np.cumsum([len(p.samples) for p in parts])[:-1]
    assert len(changed) and all(np.abs(seams - c).min() <= FADE_S * whole.sample_rate for c in changed)
    for seam in seams:
        assert np.abs(whole.samples[seam - 1 : seam + 1]).max() < 1e-3


def test_a_part_without_a_sound_is_left_out_and_a_text_without_one_refused(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like a word without a sound within a sentence: what is spoken must not depend on where a text is cut."""
    engine = make_engine(segment_chars=60, **frames_each(3))
    prompt = engine.prompter.prompt

    def prompt_of_english(speech: SpeechRequest) -> Prompt:
        if not speech.text.isascii():
            raise NothingToSay("nothing is left to say")
        return prompt(speech)

    monkeypatch.setattr(engine.prompter, "prompt", prompt_of_english)
    poem = 3 * "床前明月光疑是地上霜。"
    whole = engine.speak(f"{poem}\n\n{SENTENCES[0]}\n\n{poem}\n\n{SENTENCES[1]}", seed=1)
    same_frames(whole.frames, engine.speak(f"{SENTENCES[0]} {SENTENCES[1]}", seed=1).frames)
    with pytest.raises(NothingToSay):
        engine.speak(4 * poem, seed=1)
    feed = engine.feed(SpeechRequest(text="", seed=1))
    feed.add(f"{poem}\n\n{SENTENCES[0]}\n\n{poem}")
    with pytest.raises(NothingToSay):
        feed.add(poem)
    feed.add(SENTENCES[1])
    feed.end()
    same_frames(feed.stream.result().frames, whole.frames)


def test_chunks_of_a_long_text_are_continuous(make_any: MakeEngine) -> None:
    engine = make_any(segment_chars=60, **frames_each(5))
    chunks = list(engine.stream(" ".join(SENTENCES), seed=1))
    ends = np.cumsum([len(c.samples) for c in chunks])
    np.testing.assert_allclose([c.start_s * c.sample_rate for c in chunks], [0, *ends[:-1]], atol=0.01)


def test_length_is_reported_when_any_part_was_cut(make_any: MakeEngine) -> None:
    engine = make_any(segment_chars=60, **frames_each(3))
    assert engine.speak(" ".join(SENTENCES), seed=1).finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("live", [True, False])
def test_max_frames_bound_the_whole(make_any: MakeEngine, live: bool) -> None:
    """The limit is in the middle of a part, at a seam, or one past it, also if parts are made at the same time."""
    engine = make_any(segment_chars=60, **frames_each(6))
    text = " ".join(SENTENCES[:3])
    whole = engine.speak(text, seed=10)
    seam = len(engine.speak(SENTENCES[0], seed=10).frames)
    per_frame = engine.model.spec.samples_per_frame
    exact = whole.frames.dtype.kind == "i"
    for most in (1, seam, seam + 1, len(whole.frames) - 1):
        cut = engine.speak(text, seed=10, max_frames=most, live=live)
        assert cut.finish_reason is FinishReason.LENGTH and len(cut.frames) == most
        same_frames(cut.frames, whole.frames[:most])
        assert len(cut.samples) == most * per_frame
        np.testing.assert_allclose(cut.samples, whole.samples[: most * per_frame], rtol=0, atol=1e-5 if exact else 1e-4)
    for most in (len(whole.frames), 10**6):  # 10**6: more than a row can have
        same(whole, engine.speak(text, seed=10, max_frames=most, live=live))


@pytest.mark.parametrize(
    ("made", "most", "reason"),
    [((3, 3), 6, FinishReason.STOP), ((3, 4), 6, FinishReason.LENGTH), ((3, 3), 3, FinishReason.LENGTH)],
)
def test_a_stop_at_the_last_frame_that_may_be_is_a_stop(made: tuple[int, int], most: int, reason: FinishReason) -> None:
    mailbox, submitted = Mailbox(), []
    steps = SimpleNamespace(post=submitted.append, abort=lambda requests: None)
    whole = LongText(mailbox, SPEC, steps, at_once=1, live=True, max_frames=most)  # type: ignore[arg-type]
    whole.start([SimpleNamespace(hear=lambda s: None, first_audio_s=None) for _ in made])  # type: ignore[misc]
    for part, frames in enumerate(made):
        for _ in range(frames):
            codes, samples = np.zeros((1, 2), np.int32), np.ones(SPEC.samples_per_frame, np.float32)
            whole.on_chunk(part, AudioChunk(samples, SPEC.sample_rate, 0.0, codes))
        if len(submitted) > part:
            whole.on_finish(part, FinishReason.STOP)
    assert mailbox.reason is reason
    chunks = list(iter(lambda: mailbox.take(0), None))
    assert sum(len(c.frames) for c in chunks) == most
    assert sum(len(c.samples) for c in chunks) == most * SPEC.samples_per_frame


@pytest.mark.parametrize(("dtype", "level"), [(np.int16, 1000), (np.float32, 0.5)])
def test_a_text_whose_first_part_has_no_sound_keeps_the_type_of_its_sound(dtype: type, level: float) -> None:
    """A model may end at once. Sound of 16 bits that followed passed for floats, and was clipped to noise."""
    mailbox, steps = Mailbox(), SimpleNamespace(post=lambda request: None)
    whole = LongText(mailbox, SPEC, steps, at_once=1, live=True)  # type: ignore[arg-type]
    whole.add([SimpleNamespace(hear=lambda s: None, first_audio_s=None)])  # type: ignore[list-item]
    whole.on_finish(0, FinishReason.STOP)
    whole.add([SimpleNamespace(hear=lambda s: None, first_audio_s=None)])  # type: ignore[list-item]
    whole.end()
    samples = np.full(SPEC.sample_rate, level, dtype)
    whole.on_chunk(1, AudioChunk(samples, SPEC.sample_rate, 0.0, np.zeros((1, 2), np.int32)))
    whole.on_finish(1, FinishReason.STOP)
    chunks = list(iter(lambda: mailbox.take(0), None))
    assert [chunk.part for chunk in chunks if chunk.ends_part] == [0, 1]
    heard = np.concatenate([chunk.samples for chunk in chunks])
    assert heard.dtype == dtype and len(heard) == len(samples)
    np.testing.assert_array_equal(heard[-100:], samples[-100:])


@pytest.mark.parametrize("most", [2, 9])
def test_max_frames_make_room_where_a_parts_own_budget_has_none(make_engine: MakeEngine, most: int) -> None:
    options = {"segment_chars": 60, "budget_s": 20.0}  # 250 frames or more for each part
    text = " ".join(SENTENCES[:3])
    expected = make_engine(**options).speak(text, seed=1, max_frames=most)
    small = make_engine(**options, max_positions=150)
    made = small.speak(text, seed=1, max_frames=most)
    same_frames(made.frames, expected.frames)
    until_end = slice(-int(FADE_S * made.sample_rate))
    np.testing.assert_allclose(made.samples[until_end], expected.samples[until_end], atol=1e-5)
    feed = small.feed(SpeechRequest(text="", seed=1, max_frames=most))
    feed.add(text)
    feed.end()
    same_frames(feed.stream.result().frames, expected.frames)
    for too_many in (None, 200):
        with pytest.raises(BadText, match="over the 150"):
            small.speak(text, seed=1, max_frames=too_many)


def test_abort_stops_all_parts(make_any: MakeEngine) -> None:
    engine = make_any(segment_chars=60)
    stream = engine.stream(" ".join(SENTENCES), seed=1, max_frames=100)
    stream.read()
    stream.abort()
    with pytest.raises(Aborted):
        stream.result()
    assert len(engine.speak("hello", seed=1, max_frames=2).frames) <= 2


def test_abort_between_two_parts_still_ends_the_stream() -> None:
    """When the abort came, one part had ended and the next was not yet submitted."""
    mailbox, submitted = Mailbox(), []
    whole = LongText(mailbox, SPEC, SimpleNamespace(post=submitted.append), at_once=1, live=True)  # type: ignore[arg-type]
    whole.start([object(), object()])  # type: ignore[list-item]
    whole.abort()
    whole.on_finish(0, FinishReason.STOP)
    assert mailbox.reason is FinishReason.ABORT and len(submitted) == 1


def test_the_budget_ends_a_runaway(make_any: MakeEngine) -> None:
    engine = make_any(budget_s=0.4, budget_s_per_token=0.04)
    speech = engine.speak("hello the world", seed=3)
    assert speech.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
    frame_s = engine.model.spec.frame_s
    assert len(speech.frames) * frame_s <= 0.4 + 0.04 * 40
    cut = [engine.speak("hello the world and speech again", seed=s) for s in range(6)]
    assert any(s.finish_reason is FinishReason.LENGTH for s in cut)
