"""The codec encoder gives a clip the same codes as the official one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from clips import reference_clip
from sonant.models.qwen3_tts.codec_encoder import CodecEncoder
from sonant.models.qwen3_tts.config import CodecConfig
from sonant.models.weights import load_into, open_weights

Golden = Callable[[str], Mapping[str, np.ndarray]]
FRAME = 1920
WINDOW_S = 10  # the sliding window in config.json, 250 positions at 25 Hz, which must not be applied


def samples_of(seconds: float) -> torch.Tensor:
    return torch.from_numpy(reference_clip(seconds)[0])


@pytest.fixture(scope="module")
def config(tiny_checkpoints: Mapping[str, Path]) -> CodecConfig:
    return CodecConfig.read(tiny_checkpoints["base"] / "speech_tokenizer")


@pytest.fixture(scope="module")
def encoder(config: CodecConfig, tiny_checkpoints: Mapping[str, Path]) -> CodecEncoder:
    with torch.device("meta"):
        encoder = CodecEncoder(config.encoder, config.encoder_valid_num_quantizers)
    encoder = encoder.to_empty(device="cpu")
    weights = open_weights(tiny_checkpoints["base"] / "speech_tokenizer")
    load_into(encoder, weights, prefix="encoder.", unused=("decoder.",))
    return encoder


def test_the_codes_of_the_reference_clip_are_the_official_ones(encoder: CodecEncoder, golden: Golden) -> None:
    samples = samples_of(1.7)
    assert len(samples) % FRAME  # the last frame is partial
    codes = encoder.encode(samples)
    assert codes.dtype == torch.int64
    np.testing.assert_array_equal(codes, golden("base")["prompt_xvec0/ref_code"])


@pytest.mark.parametrize("length", [1, 2, FRAME - 1, FRAME, FRAME + 1, 12 * FRAME, 12 * FRAME + 959])
def test_every_started_frame_gets_its_codes(encoder: CodecEncoder, length: int) -> None:
    assert encoder.encode(samples_of(2)[:length]).shape == (-(-length // FRAME), 16)


def test_what_follows_does_not_change_the_frames_before_it(encoder: CodecEncoder) -> None:
    samples = samples_of(3)
    with torch.no_grad():
        whole, start = encoder(samples[None]), encoder(samples[None, : 20 * FRAME])
    torch.testing.assert_close(whole[..., :20], start, atol=1e-5, rtol=0)


def test_attention_reaches_back_over_the_whole_clip(encoder: CodecEncoder, config: CodecConfig) -> None:
    # Windows add up over layers, so only a difference beyond all of them proves that there is no window.
    seconds = WINDOW_S * config.encoder.num_hidden_layers + 4
    samples = samples_of(seconds)
    other_start = samples.clone()
    other_start[: encoder.samples_per_frame * 12] *= -0.3
    with torch.no_grad():
        last, other_last = encoder(samples[None])[0, :, -1], encoder(other_start[None])[0, :, -1]
    assert (last - other_last).abs().max() > 1e-5


def test_a_minute_of_sound_is_encoded_in_one_piece(encoder: CodecEncoder) -> None:
    assert encoder.encode(samples_of(60)).shape == (750, 16)


def test_fewer_codebooks_are_the_first_of_more(encoder: CodecEncoder, config: CodecConfig) -> None:
    few = CodecEncoder(config.encoder, 4)
    few.load_state_dict(encoder.state_dict())
    torch.testing.assert_close(few.encode(samples_of(1)), encoder.encode(samples_of(1))[:, :4])


@pytest.mark.parametrize("codebooks", [0, 33])
def test_a_number_of_codebooks_that_the_codec_lacks_is_refused(config: CodecConfig, codebooks: int) -> None:
    with pytest.raises(ValueError, match=f"{codebooks} codebooks asked of 32"):
        CodecEncoder(config.encoder, codebooks)


def test_gradients_reach_every_weight_before_the_quantiser(config: CodecConfig) -> None:
    torch.manual_seed(0)
    encoder = CodecEncoder(config.encoder, 16)
    encoder(samples_of(0.5)[None]).square().sum().backward()
    without = [n for n, p in encoder.named_parameters() if p.grad is None and not n.startswith("quantizer.")]
    assert not without
