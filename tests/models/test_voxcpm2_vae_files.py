"""Which of VoxCPM2's codec files are read, and what is refused in them or in their config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from models.small_voxcpm2_vae import CONFIG, PATCH_SIZE, decoder_of, encoder_of, published, random_weights, write
from sonant.errors import CheckpointError
from sonant.models.voxcpm2.vae_config import VAEConfig
from sonant.models.voxcpm2.vae_weights import load_vae

CPU, META = torch.device("cpu"), torch.device("meta")


def stored() -> dict[str, Tensor]:
    return published(CONFIG, random_weights(CONFIG))


def load(folder: Path, raw: dict[str, Any] | None = None, device: torch.device = META) -> Any:
    return load_vae(folder, raw or CONFIG, device, torch.float32, patch_size=PATCH_SIZE)


@pytest.mark.parametrize("pickled", [True, False])
def test_the_codec_is_read_and_its_weight_norm_folded(tmp_path: Path, pickled: bool) -> None:
    decoder, encoder = load(write(tmp_path, stored(), pickled=pickled), device=CPU)
    for module, expected in ((decoder, decoder_of(CONFIG, torch.float32)), (encoder, encoder_of(CONFIG))):
        values = module.state_dict()
        assert values.keys() == expected.state_dict().keys()
        for name, value in expected.state_dict().items():
            torch.testing.assert_close(values[name], value, rtol=1e-5, atol=1e-7)
        assert not any(p.requires_grad for p in module.parameters())


def test_the_decoder_is_of_the_dtype_asked_for_and_the_encoder_is_not(tmp_path: Path) -> None:
    decoder, encoder = load_vae(write(tmp_path, stored()), CONFIG, CPU, torch.bfloat16)
    with torch.no_grad():
        samples = decoder(encoder.encode_clip(torch.ones(3000), "left")[0][None])
    assert samples.shape == (1, 4 * 1920) and samples.dtype is torch.bfloat16 and samples.isfinite().all()
    assert {p.dtype for p in encoder.parameters()} == {torch.float32}


def test_safetensors_go_before_the_pickle(tmp_path: Path) -> None:
    write(tmp_path, stored(), pickled=False)
    (tmp_path / "audiovae.pth").write_bytes(b"never read")
    load(tmp_path)


def test_a_codec_is_checked_without_memory(tmp_path: Path) -> None:
    for module in load(write(tmp_path, stored())):
        assert all(value.is_meta for value in module.state_dict().values())


def test_no_codec_says_what_to_fetch(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"neither audiovae\.safetensors nor audiovae\.pth.* fetch audiovae\.pth"):
        load(tmp_path)


@pytest.mark.parametrize("pickled", [True, False])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unheard_of.weight": torch.zeros(1)}, "holds unheard_of.weight, unknown"),
        ({"encoder.block.9.bias": torch.zeros(1)}, "holds encoder.block.9.bias, unknown"),
        ({"decoder.model.2.block.1.bias": None}, r"lacks decoder\.model\.2\.block\.1\.conv\.bias"),
        ({"decoder.model.0.weight_g": None}, r"lacks decoder\.model\.0\.conv\.weight_g"),
        ({"encoder.fc_mu.weight_v": None}, r"lacks encoder\.fc_mu\.weight_v"),
        ({"decoder.sr_cond_model.7.bias_embed.weight": None}, "lacks decoder.sr_cond_model.7.bias_embed.weight"),
        ({"encoder.fc_mu.weight_v": torch.ones(6, 32, 5)}, r"weight_v has shape \[6, 32, 5\].* asks for \[6, 32, 3\]"),
        ({"decoder.model.1.bias": torch.ones(64)}, r"model\.1\.bias"),
        ({"decoder.sr_bin_boundaries": None}, r"lacks decoder\.sr_bin_boundaries: it is no AudioVAE V2; fetch"),
        ({"decoder.sr_bin_boundaries": torch.tensor([20000, 30000, 44100])}, r"44100\), but sr_bin_boundaries of con"),
        ({"decoder.sr_bin_boundaries": torch.ones(3)}, "should be a line of whole numbers, not torch.float32"),
    ],
)
def test_every_tensor_is_accounted_for(tmp_path: Path, pickled: bool, change: dict[str, Any], message: str) -> None:
    tensors = {name: value for name, value in {**stored(), **change}.items() if value is not None}
    with pytest.raises(CheckpointError, match=message):
        load(write(tmp_path, tensors, pickled=pickled))


def test_a_pickle_that_holds_no_tensors_by_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "audiovae.pth"
    for held, message in (
        ([torch.ones(1)], "holds a list, not tensors by name"),
        ({"state_dict": {"decoder.model.0.bias": "loud"}}, "is no plain tensor"),
        ({"state_dict": {}, "optimizer": {}}, "is no plain tensor"),
        ({"state_dict": Path("x")}, "fetch it again or convert it to safetensors"),  # unpickling it would run code
    ):
        torch.save(held, path)
        with pytest.raises(CheckpointError, match=message):
            load(tmp_path)


@pytest.mark.parametrize("pickled", [True, False])
def test_a_file_that_was_cut_short_is_to_be_fetched_again(tmp_path: Path, pickled: bool) -> None:
    path = next(write(tmp_path, stored(), pickled=pickled).iterdir())
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(CheckpointError, match="fetch it again"):
        load(tmp_path)


def test_an_empty_config_is_the_official_default() -> None:
    config = VAEConfig.from_dict({}, "config.json")
    assert (config.samples_per_latent, config.clip_samples_per_latent, config.rate_bin) == (1920, 640, 3)
    assert (config.encoder_dim, config.latent_dim, config.decoder_dim) == (128, 64, 2048)
    assert VAEConfig.from_dict({"depthwise": True, "cond_type": "scale_bias_init", "cond_dim": 128}, "") == config


@pytest.mark.parametrize(("rate", "bin_"), [(16000, 0), (20000, 0), (20001, 1), (40000, 2), (48000, 3)])
def test_a_boundary_belongs_to_the_range_below_it(rate: int, bin_: int) -> None:
    raw = {**CONFIG, "sample_rate": rate, "out_sample_rate": rate, "encoder_rates": CONFIG["decoder_rates"]}
    config = VAEConfig.from_dict(raw, "config.json")
    assert config.rate_bin == bin_ == int(torch.bucketize(torch.tensor(rate), torch.tensor([20000, 30000, 40000])))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("depthwise", False, "depthwise is False; Sonant supports only True"),
        ("use_noise_block", True, "use_noise_block is True"),
        ("cond_type", "concat", "cond_type is 'concat'; Sonant supports only 'scale_bias'"),
        ("cond_out_layer", True, "cond_out_layer is True"),
        ("sr_bin_boundaries", None, "sr_bin_boundaries is null"),
        ("sr_bin_boundaries", [30000, 20000], "ascending"),
        ("latent_dim", None, "latent_dim is null"),
        ("latent_dim", 0, "latent_dim is 0"),
        ("encoder_rates", [], "encoder_rates is"),
        ("decoder_rates", [8, 0], "decoder_rates is"),
        ("decoder_rates", "fast", "decoder_rates must be a list"),
        ("decoder_dim", 96, "decoder_dim is 96; Sonant supports only what can be halved"),
        ("out_sample_rate", 44100, r"sample_rate / encoder_rates is 25\.0, but out_sample_rate / decoder_rates"),
    ],
)
def test_what_is_not_followed_is_refused_by_name(key: str, value: object, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        VAEConfig.from_dict({**CONFIG, key: value}, "config.json: audio_vae_config")
