"""A dialogue: its speakers are checked before anything is spoken, and every part knows who speaks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from clips import reference_clip
from engine.families import frames_each
from sonant import Engine, EngineConfig, SpeechRequest, Voice
from sonant.errors import BadRequest, BadText, Unsupported
from toy_family.model import ToyModel
from toy_family.recording import RecordingToy

TEXT = "[SPEAKER0] Hello. [SPEAKER1] Hi."
OPTIONS: dict[str, Any] = {"seed": 1}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    config, device = EngineConfig(max_rows=2, segment_chars=40, **frames_each(5, frame_s=0.04)), torch.device("cpu")
    with Engine(RecordingToy(config, device, most_speakers=3), config, device) as opened:
        yield opened


@pytest.fixture
def asked(engine: Engine) -> list[SpeechRequest]:
    assert isinstance(engine.model, RecordingToy)
    engine.model.asked.clear()
    return engine.model.asked


@pytest.fixture(scope="module")
def voice(engine: Engine) -> Voice:
    return engine.clone(reference_clip(1.0))


def test_speakers_are_heard(engine: Engine, voice: Voice) -> None:
    spoken = [
        engine.speak(TEXT, speakers=speakers, **OPTIONS).frames
        for speakers in ((), ("low", "high"), ("high", "low"), (voice, "low"), ("low", voice))
    ]
    assert len({frames.tobytes() for frames in spoken}) == len(spoken)


VOICE = Voice({"latents": np.zeros((2, 3), np.float32)}, family="toy")


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"speakers": ["a", "b"]}, BadRequest, "speakers must be tuple"),
        ({"speakers": ("a", 5)}, BadRequest, "speaker 1 must be a Voice, or words, not int"),
        ({"speakers": ("a", None)}, BadRequest, "speaker 1 must be a Voice"),
        ({"speakers": ("  ",)}, BadRequest, "speaker 0 has an empty description"),
        ({"speakers": ("a", "x" * 1001)}, BadRequest, "speaker 1 has 1,001 characters, over the limit of 1,000"),
        ({"speakers": ("...",)}, BadText, "description of a speaker has no letters"),
        ({"speakers": ("\ud800 low",)}, BadText, "not valid Unicode"),
        ({"speakers": ("a",), "voice": VOICE}, BadRequest, "voice and speakers exclude each other"),
        ({"speakers": ("a", "b", "c", "d")}, Unsupported, "at most 3 speakers in a text, not 4"),
        ({"text": "[SPEAKER1]"}, BadText, r"names \[SPEAKER1\] and nothing to say"),
    ],
)
def test_speakers_that_cannot_be_are_refused(
    engine: Engine, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        engine.speak(**{"text": TEXT, **options})


def test_a_model_of_one_voice_says_so() -> None:
    config, device = EngineConfig(max_rows=1, **frames_each(5, frame_s=0.04)), torch.device("cpu")
    with Engine(ToyModel(config, device), config, device) as engine:
        for speakers in (("a",), ("a", "b")):
            with pytest.raises(Unsupported, match="one voice at a time; leave speakers out"):
                engine.speak(TEXT, speakers=speakers)
        assert len(engine.speak(TEXT, **OPTIONS).frames)  # for this model brackets are text like any other


def test_every_part_of_a_long_dialogue_says_who_speaks(engine: Engine, asked: list[SpeechRequest]) -> None:
    text = "[SPEAKER0] One sentence of the first. Another one of the first. [SPEAKER1] And one of the second, too. Yes."
    engine.speak(text, speakers=("low", "high"), **OPTIONS)
    assert [r.text for r in asked] == [
        "[SPEAKER0] One sentence of the first.",
        "[SPEAKER0] Another one of the first.",
        "[SPEAKER1] And one of the second, too.",
        "[SPEAKER1] Yes.",
    ]
    assert all(r.speakers == ("low", "high") for r in asked)


def test_a_feed_remembers_whose_turn_it_is(engine: Engine, asked: list[SpeechRequest]) -> None:
    feed = engine.feed(SpeechRequest(text="", **OPTIONS, speakers=("low", "high")))
    feed.add("[SPEAKER0] Hello.")
    feed.add("How are you?")
    with pytest.raises(BadText, match="nothing to say"):
        feed.add("[SPEAKER1]")
    feed.add("Well.")
    feed.end()
    assert len(feed.stream.result().frames)
    assert [r.text for r in asked] == ["[SPEAKER0] Hello.", "[SPEAKER0] How are you?", "[SPEAKER1] Well."]
