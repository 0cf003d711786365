"""The speaker encoder gives a clip the same embedding as the official one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from clips import reference_clip
from sonant.errors import CheckpointError
from sonant.models.qwen3_tts.config import Qwen3TTSConfig
from sonant.models.qwen3_tts.speaker import SpeakerEncoder
from sonant.models.weights import load_into, open_weights

Golden = Callable[[str], Mapping[str, np.ndarray]]


def build(folder: Path) -> SpeakerEncoder:
    config = Qwen3TTSConfig.read(folder).speaker
    assert config is not None
    with torch.device("meta"):
        encoder = SpeakerEncoder(config)
    return encoder.to_empty(device="cpu")


@pytest.fixture(scope="module")
def encoder(tiny_checkpoints: Mapping[str, Path]) -> SpeakerEncoder:
    folder = tiny_checkpoints["base"]
    encoder = build(folder)
    load_into(encoder, open_weights(folder), prefix="speaker_encoder.", unused=("talker.",))
    return encoder


def test_the_embedding_of_the_clip_is_the_official_one(encoder: SpeakerEncoder, golden: Golden) -> None:
    embedding = encoder.embed(torch.from_numpy(reference_clip()[0]))
    np.testing.assert_allclose(embedding, golden("base")["prompt_xvec1/ref_spk_embedding"], atol=1e-4, rtol=0)


def test_the_official_mel_gives_the_official_embedding(encoder: SpeakerEncoder, golden: Golden) -> None:
    mel = torch.from_numpy(golden("base")["prompt_xvec0/spk_mel"]).reshape(1, -1, 128)
    with torch.no_grad():
        embedding = encoder(mel)[0]
    np.testing.assert_allclose(embedding, golden("base")["prompt_xvec1/ref_spk_embedding"], atol=1e-4, rtol=0)


def test_clips_of_one_batch_do_not_touch_each_other(encoder: SpeakerEncoder) -> None:
    mel = torch.randn(3, 60, 128, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(encoder(mel)[1], encoder(mel[1:2])[0], atol=1e-5, rtol=0)


def test_embedding_outside_autograd_and_training_inside_it_both_work(encoder: SpeakerEncoder) -> None:
    samples = torch.from_numpy(reference_clip(0.6)[0])
    assert not encoder.embed(samples).requires_grad
    encoder(torch.zeros(1, 60, 128)).sum().backward()
    assert all(p.grad is not None for p in encoder.parameters())
    encoder.zero_grad()


def test_a_checkpoint_without_a_speaker_encoder_is_refused_by_tensor_name(
    tiny_checkpoints: Mapping[str, Path],
) -> None:
    encoder = build(tiny_checkpoints["base"])
    with pytest.raises(CheckpointError, match=r"lacks speaker_encoder\.blocks"):
        load_into(encoder, open_weights(tiny_checkpoints["custom"]), prefix="speaker_encoder.", unused=("talker.",))
