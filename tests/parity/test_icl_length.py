"""The length of an in-context clone, compared with the official package's arithmetic.

That package decodes the reference's frames and the new ones in one piece, and cuts the reference off by its share of
the whole: `int(reference / total * samples)`. In exact numbers that is reference frames times samples a frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

import sonant
from clips import SAMPLE_RATE, reference_clip
from parity.cases import ENGLISH, REFERENCE_TEXT
from sonant import Engine, Speech, Voice
from sonant.models.qwen3_tts.model import Qwen3TTS

FRAME = 1920


def official_length(reference: int, frames: int) -> int:
    total = reference + frames
    samples = total * FRAME
    return samples - int(reference / max(total, 1) * samples)


@pytest.fixture(scope="module")
def engine(tiny_checkpoints: Mapping[str, Path]) -> Iterator[Engine]:
    with sonant.load(tiny_checkpoints["base"], device="cpu") as engine:
        yield engine


def clone(engine: Engine, reference: int) -> Voice:
    """A voice whose reference has exactly `reference` frames."""
    voice = engine.clone(reference_clip(reference * FRAME / SAMPLE_RATE), REFERENCE_TEXT)
    assert len(voice.tensors["codes"]) == reference
    return voice


def clone_length(engine: Engine, reference: int, frames: int) -> int:
    return len(clone_of(engine, reference, frames).samples)


def clone_of(engine: Engine, reference: int, frames: int) -> Speech:
    """Speech of exactly `frames` frames, after a reference of exactly `reference` frames."""
    voice = clone(engine, reference)
    for seed in range(40):  # most seeds run to the limit; some stop before it
        speech = engine.speak(ENGLISH, voice=voice, seed=seed, max_frames=frames)
        if len(speech.frames) == frames:
            return speech
    raise AssertionError(f"no seed gave {frames} frames")


@pytest.mark.parametrize(("reference", "frames"), [(15, 6), (15, 8), (22, 7), (7, 1), (30, 12)])
def test_a_clone_is_as_long_as_the_official_one(engine: Engine, reference: int, frames: int) -> None:
    assert official_length(reference, frames) == frames * FRAME
    assert clone_length(engine, reference, frames) == official_length(reference, frames)


@pytest.mark.parametrize(("reference", "frames"), [(15, 7), (13, 10), (17, 6), (15, 11)])
def test_where_the_share_rounds_down_the_references_last_sample_is_left(
    engine: Engine, reference: int, frames: int
) -> None:
    assert official_length(reference, frames) == frames * FRAME + 1
    speech = clone_of(engine, reference, frames)
    assert len(speech.samples) == official_length(reference, frames)
    with engine.stream(ENGLISH, voice=clone(engine, reference), seed=speech.seed, max_frames=frames) as stream:
        streamed = np.concatenate([chunk.samples for chunk in stream])  # at its start its length is unknown
    np.testing.assert_allclose(speech.samples[1:], streamed, rtol=0, atol=1e-5)
    assert isinstance(engine.model, Qwen3TTS)
    codes = torch.from_numpy(clone(engine, reference).tensors["codes"])[None]
    with torch.inference_mode():
        spoken = engine.model.modules.decoder(codes, torch.zeros(1, dtype=torch.long))[0]
    np.testing.assert_allclose(speech.samples[0], spoken[-1].numpy(), rtol=0, atol=1e-5)
