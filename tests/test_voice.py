"""The built-in voice: whatever people type, it speaks and ends by itself, or says what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pytest

import sonant
from sonant import Engine, Speech
from sonant.errors import BadText

SPEAKERS = ("heart", "bella", "michael", "fenrir")
PLAIN = "The quick brown fox jumps over the lazy dog."
ODD = {
    "very short": "Hi.",
    "a letter": "A",
    "capitals": "PLEASE CLOSE THE DOOR NOW",
    "digits": "1234567890",
    "money and time": "It cost $1,234.50 at 9:05 PM on Jan. 3rd, 2024.",
    "an address": "See https://www.example.com/a?b=1&c=2 or mail me@example.org.",
    "emoji": "Great job 👍🎉 well done 😀",
    "languages": "Hello, 你好, привет, مرحبا, good-bye.",
    "no spaces": "antidisestablishmentarianism" * 3,
    "control characters": "one\x07 two\ttab\r\nnew line",
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with sonant.load(device="cpu") as opened:
        yield opened


@pytest.fixture(scope="module")
def spoken(engine: Engine) -> Mapping[str, Speech]:
    """All speech that the tests below need, made at once: by speaker, and by what is odd about the text."""
    streams = {voice: engine.stream(PLAIN, voice=voice, seed=1, live=False) for voice in SPEAKERS}
    streams |= {name: engine.stream(text, seed=2, live=False) for name, text in ODD.items()}
    return {name: stream.result() for name, stream in streams.items()}


@pytest.mark.parametrize("voice", SPEAKERS)
def test_every_speaker_says_a_sentence_in_about_its_time(
    engine: Engine, spoken: Mapping[str, Speech], voice: str
) -> None:
    assert voice in engine.voices
    speech = spoken[voice]
    assert speech.finish_reason == "stop" and 1.8 < speech.duration_s < 4.5
    loud = np.sqrt(np.mean(np.square(speech.samples.reshape(-1, 1920)), axis=1))
    assert 0.02 < loud.max() < 0.7
    assert np.abs(speech.samples).max() < 1 and loud[-1] < 0.1 * loud.max()  # it does not break off


def test_without_a_name_the_first_voice_speaks(engine: Engine) -> None:
    first, named = (engine.speak("Hello.", voice=voice, seed=5) for voice in (None, engine.voices[0]))
    np.testing.assert_array_equal(first.frames, named.frames)


@pytest.mark.parametrize("odd", ODD)
def test_whatever_people_type_ends_by_itself(spoken: Mapping[str, Speech], odd: str) -> None:
    speech = spoken[odd]
    assert speech.finish_reason == "stop"
    assert 0.2 < speech.duration_s < 2 + 0.5 * len(ODD[odd].encode())
    assert np.isfinite(speech.samples).all()


@pytest.mark.parametrize(
    "text", ["", "   \n", "…!?", "👍", "\u200b"], ids=["nothing", "space", "marks", "emoji", "unseen"]
)
def test_nothing_to_say_is_told_so(engine: Engine, text: str) -> None:
    with pytest.raises(BadText):
        engine.speak(text)


def test_a_long_text_is_spoken_to_its_end(engine: Engine) -> None:
    speech = engine.speak(" ".join([PLAIN] * 8), seed=3)
    assert speech.finish_reason == "stop" and 8 * 1.8 < speech.duration_s < 8 * 4.5


@pytest.mark.long
def test_two_thousand_characters(engine: Engine) -> None:
    sentences = (f"This is sentence number {n}, and it says nothing that matters much." for n in range(1, 40))
    text = " ".join(sentences)[:2000]
    speech = engine.speak(text, seed=4)
    assert speech.finish_reason == "stop" and 80 < speech.duration_s < 240


@pytest.mark.gpu
def test_a_gpu_says_the_same_as_the_cpu(engine: Engine) -> None:
    """The voice's shapes are unlike those of the published models: five heads, a predictor of another width."""
    greedy = sonant.Sampling.greedy()
    with sonant.load(device="cuda", dtype="float32", codec_dtype="float32") as other:
        for voice in engine.voices:
            here, there = (e.speak(PLAIN, voice=voice, sampling=greedy) for e in (engine, other))
            np.testing.assert_array_equal(here.frames, there.frames)
            np.testing.assert_allclose(here.samples, there.samples, atol=1e-3)
    with sonant.load(device="cuda") as usual:
        assert usual.speak(PLAIN, seed=1).finish_reason == "stop"
