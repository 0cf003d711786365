"""Higgs Audio V2: our rows and our sound are those of transformers, alone, among others and in any chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sonant
from parity.higgs_cases import CASES, CLIPS, Clip, HiggsCase
from parity.higgs_forcing import forced_logits
from sonant import Engine, EngineConfig, Sampling, Voice
from sonant.models.higgs_audio_v2.model import HiggsAudioV2
from sonant.types import SpeechRequest, Spoken

Golden = Callable[[str], Mapping[str, np.ndarray]]
WAV_TOLERANCE = 1e-5
RATE = 24_000
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))


@dataclass(frozen=True)
class Speaker:
    engine: Engine

    def voice(self, clip: Clip | str | None) -> Any:
        return self.engine.clone((clip.samples(), RATE), clip.words) if isinstance(clip, Clip) else clip

    def options(self, case: HiggsCase, **more: Any) -> dict[str, Any]:
        context = tuple(Spoken(text, self.voice(clip).tensors["codes"]) for text, clip in case.context)
        return {
            "text": case.text,
            "voice": self.voice(case.voice),
            "speakers": tuple(self.voice(who) for who in case.speakers),
            "instruct": case.instruct,
            "context": context,
            "sampling": Sampling.greedy(),
            "max_frames": case.max_frames,
            **more,
        }


@pytest.fixture(scope="module", params=DEVICES)
def speaker(request: pytest.FixtureRequest, tiny_higgs: Path) -> Iterator[Speaker]:
    config = EngineConfig(max_rows=8)  # by default a GPU would have thousands
    with sonant.load(tiny_higgs, device=request.param, dtype="float32", codec_dtype="float32", config=config) as engine:
        yield Speaker(engine)


def check(speech: sonant.Speech, case: HiggsCase, expected: Mapping[str, np.ndarray]) -> None:
    np.testing.assert_array_equal(speech.frames, expected[f"{case.name}/codes"])
    assert speech.finish_reason == ("length" if len(speech.frames) == case.max_frames else "stop")
    if f"{case.name}/wav" in expected:
        np.testing.assert_allclose(speech.samples, expected[f"{case.name}/wav"], rtol=0, atol=WAV_TOLERANCE)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("live", [False, True], ids=["file", "listener"])
def test_speaks_the_official_codes_and_sound(case: HiggsCase, live: bool, speaker: Speaker, golden: Golden) -> None:
    check(speaker.engine.submit(SpeechRequest(**speaker.options(case, live=live))).result(), case, golden("higgs"))


def test_all_at_once_admitted_apart_are_as_each_alone(speaker: Speaker, golden: Golden) -> None:
    """There are more cases than rows, so a new one begins wherever another has ended."""
    streams = [speaker.engine.submit(SpeechRequest(**speaker.options(case))) for case in CASES]
    for case, stream in zip(CASES, streams, strict=True):
        check(stream.result(), case, golden("higgs"))


@pytest.mark.parametrize("clip", CLIPS, ids=lambda clip: clip.name)
def test_a_cloned_voice_is_the_official_codes(clip: Clip, speaker: Speaker, golden: Golden) -> None:
    voice = speaker.voice(clip)
    assert isinstance(voice, Voice)
    np.testing.assert_array_equal(voice.tensors["codes"], golden("higgs_codec")[f"{clip.name}/codes"])


@pytest.mark.parametrize("chunks", [(1,), (1, 3), (1, 2, 4, 8, 16, 32)], ids=str)
@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_chunk_sizes_and_pipelining_change_nothing(
    chunks: tuple[int, ...], steps_ahead: int, tiny_higgs: Path, golden: Golden
) -> None:
    config = EngineConfig(chunk_s=tuple(0.04 * n for n in chunks), steps_ahead=steps_ahead, prefill_tokens=7)
    case = next(case for case in CASES if case.name == "plain")
    with sonant.load(tiny_higgs, device="cpu", config=config) as engine:
        check(engine.submit(SpeechRequest(**Speaker(engine).options(case))).result(), case, golden("higgs"))


def test_the_prompts_keys_are_used_again_by_whoever_has_the_same_voice(tiny_higgs: Path) -> None:
    with sonant.load(tiny_higgs, device="cpu") as engine:
        voice = Speaker(engine).voice(CASES[3].voice)
        requests = [SpeechRequest(text=text, voice=voice) for text in ("One.", "Another one.")]
        prompts = [engine.model.prompter.prompt(request) for request in requests]
        both = min(prompt.length for prompt in prompts)
        shared = np.flatnonzero((prompts[0].keys[:both] != prompts[1].keys[:both]).any(1))[0]
        pool = engine.loop.pool
        engine.speak("One.", voice=voice, max_frames=1)
        allocation = pool.allocate(prompts[1].keys, prompts[1].length - 1, prompts[1].length)
    assert allocation is not None
    assert allocation.reused_tokens == shared // engine.config.block_tokens * engine.config.block_tokens > 100


def test_logits_with_every_row_given(tiny_higgs: Path, golden: Golden) -> None:
    """Logits agree at every step of a whole utterance."""
    expected = golden("higgs_forced")
    (name,) = {key.split("/")[0] for key in expected if "/" in key}
    case = next(case for case in CASES if case.name == name)
    with sonant.load(tiny_higgs, device="cpu", dtype="float32") as engine:
        assert isinstance(engine.model, HiggsAudioV2)
        request = SpeechRequest(**Speaker(engine).options(case))
        logits = forced_logits(engine.model, request, torch.from_numpy(golden("higgs")[f"{name}/rows"]))
    theirs = torch.from_numpy(expected[f"{name}/forced_logits"]).float().unflatten(1, (8, -1))
    torch.testing.assert_close(logits[: len(theirs)], theirs, rtol=0, atol=2e-2)  # theirs are kept in sixteen bits
