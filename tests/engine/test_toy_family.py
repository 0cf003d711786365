"""What only the toy uses of the contract: latents, look-ahead, a delay pattern, kinds of frame step, a clip rate of its
own."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from clips import reference_clip
from engine.families import TOY, same
from sonant import Engine, EngineConfig, FinishReason, Sampling, Speech
from sonant.errors import BadSampling, UnknownVoice
from sonant.models.prompt import Prompt
from toy_family.model import ToyModel
from toy_family.sizes import CHANNELS, CLIP_HOP, CLIP_RATE, LOOKAHEAD

TEXT = "hello the world"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with TOY.open({}, EngineConfig(max_rows=4)) as opened:
        yield opened


def whole(engine: Engine, speech: Speech) -> np.ndarray:
    """The sound of the whole utterance in one pass of the codec."""
    assert isinstance(engine.model, ToyModel)
    return engine.model.modules.whole(torch.from_numpy(speech.frames)).numpy()


@pytest.mark.parametrize("steps_ahead", [0, 1])
@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("chunk_s", [(0.04,), (0.04, 0.12, 0.4), (1.28,)], ids=str)
def test_a_codec_that_looks_ahead_streams_exactly(chunk_s: tuple[float, ...], live: bool, steps_ahead: int) -> None:
    with TOY.open({}, EngineConfig(max_rows=4, chunk_s=chunk_s, steps_ahead=steps_ahead)) as engine:
        for seed, frames in ((1, 1), (2, LOOKAHEAD), (3, LOOKAHEAD + 1), (4, 40)):
            speech = engine.stream(TEXT, seed=seed, max_frames=frames, live=live).result()
            np.testing.assert_allclose(speech.samples, whole(engine, speech), rtol=0, atol=1e-6)


def test_first_sound_waits_for_the_frames_that_the_codec_reads_past_it(engine: Engine) -> None:
    steps = engine.stats().steps
    stream = engine.stream(TEXT, seed=1, max_frames=200, sampling=Sampling(stop_chance=0.0))
    first = stream.read()
    assert first is not None and len(first.frames) == 1
    assert engine.stats().steps - steps >= CHANNELS - 1 + 1 + LOOKAHEAD
    stream.abort()


def test_the_frame_that_carries_the_stop_is_heard(engine: Engine) -> None:
    """A model that can stop at its second frame, and is certain to, speaks two frames and not one."""
    speech = engine.speak(TEXT, seed=1, max_frames=50, sampling=Sampling(stop_chance=1.0))
    assert speech.frames.shape == (2, CHANNELS) and speech.finish_reason is FinishReason.STOP
    assert len(speech.samples) == 2 * engine.model.spec.samples_per_frame


def test_a_budget_counts_frames_and_not_the_steps_before_the_first(engine: Engine) -> None:
    speech = engine.speak(TEXT, seed=1, max_frames=7, sampling=Sampling(stop_chance=0.0))
    assert len(speech.frames) == 7 and speech.finish_reason is FinishReason.LENGTH


def test_kinds_of_frame_step_run_side_by_side(engine: Engine) -> None:
    kinds = [Sampling(refinements=n, temperature=0.0) for n in (1, 2, 1, 2)]
    alone = [engine.speak(TEXT, seed=1, max_frames=9, sampling=kind) for kind in kinds]
    together = [engine.stream(TEXT, seed=1, max_frames=9, sampling=kind) for kind in kinds]
    for expected, stream in zip(alone, together, strict=True):
        same(expected, stream.result())
    assert np.abs(alone[0].frames - alone[1].frames).max() > 0.01
    with pytest.raises(BadSampling, match="refinements must be one of 1, 2, not 3"):
        engine.speak(TEXT, sampling=Sampling(refinements=3))


def test_a_clip_comes_at_its_own_rate_and_a_voice_of_latents_is_spoken_with(engine: Engine) -> None:
    voice = engine.clone(reference_clip(1.0))
    assert voice.family == "toy" and voice.tensors["latents"].shape == (CLIP_RATE // CLIP_HOP, CHANNELS)
    options = {"seed": 1, "max_frames": 6, "sampling": Sampling(temperature=0.0)}
    cloned, plain = (engine.speak(TEXT, voice=v, **options) for v in (voice, None))
    assert np.abs(cloned.frames[0] - plain.frames[0]).max() > 1e-3
    assert cloned.sample_rate == 48_000
    with pytest.raises(UnknownVoice, match="no such voice"):
        engine.speak(TEXT, voice="ryan")


def test_a_prefix_is_reused_in_every_group_of_layers() -> None:
    with TOY.open({}, EngineConfig(max_rows=2, block_tokens=4)) as engine:
        first, again = (engine.speak(TEXT, seed=3, max_frames=8) for _ in range(2))
        same(first, again)
        same(first, engine.speak(TEXT, seed=3, max_frames=8))
    with TOY.open({}, EngineConfig(max_rows=2, prefill_tokens=3)) as engine:
        same(first, engine.speak(TEXT, seed=3, max_frames=8))


def test_an_opening_is_made_for_whole_results_only(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may cost a pass of the codec, which a stream must not pay for."""
    asked: list[tuple[int, int]] = []

    def opening(prompt: Prompt, frames: int) -> np.ndarray:
        asked.append((prompt.length, frames))
        return np.full(3, 0.5, np.float32)

    monkeypatch.setattr(engine.model, "opening", opening)
    options = {"seed": 1, "max_frames": 6, "sampling": Sampling(stop_chance=0.0)}
    streamed = np.concatenate([chunk.samples for chunk in engine.stream(TEXT, **options)])
    assert asked == []
    whole = engine.speak(TEXT, **options)
    assert asked == [(len(TEXT), 6)]
    assert whole.samples[:3].tolist() == [0.5] * 3 and len(whole.samples) == len(streamed) + 3
