"""Where Higgs Audio V2's codec is found, which of its files are read, and what is refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from models.small_higgs_codec import CONFIG, random_weights, write_boson, write_native
from sonant.errors import CheckpointError
from sonant.models.higgs_audio_v2.codec_config import CodecConfig
from sonant.models.higgs_audio_v2.codec_place import codec_place
from sonant.models.higgs_audio_v2.codec_weights import StoredCodec, load_codec, open_codec

FIRST_FORM = {
    "n_filters": 32, "D": 256, "codebook_dim": 64, "target_bandwidths": [0.5, 1, 1.5, 2, 4], "ratios": [8, 5, 4, 2, 3],
    "sample_rate": 24000, "bins": 1024, "n_q": 8, "semantic_techer": "hubert_base_general",
}  # fmt: skip
PUBLISHED = {
    "model_type": "higgs_audio_v2_tokenizer",
    "target_bandwidths": [0.5, 1, 1.5, 2],
    "acoustic_model_config": {"downsampling_ratios": [8, 5, 4, 2, 3], "upsampling_ratios": [8, 5, 4, 2, 3]},
    "semantic_model_config": {"model_type": "hubert"},
}
META = torch.device("meta")


def read(tmp_path: Path, raw: dict[str, Any]) -> CodecConfig:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(raw))
    return CodecConfig.read(path)


def test_both_forms_of_the_published_config_say_the_same(tmp_path: Path) -> None:
    config = read(tmp_path, FIRST_FORM)
    assert config == read(tmp_path, PUBLISHED)
    assert (config.num_quantizers, config.codebook_size, config.hidden_size) == (8, 1024, 1024)
    assert (config.samples_per_frame, config.semantic_step, config.acoustic.decoder_hidden_size) == (960, 2, 1024)
    assert (config.semantic.hidden_size, config.semantic.num_hidden_layers) == (768, 12)


@pytest.mark.parametrize(
    ("place", "key", "value", "message"),
    [
        ("", "model_type", "xcodec", "model_type is 'xcodec'"),
        ("", "target_bandwidths", [0.5, 1, 1.5, 2, 4], "16 codebooks with 1024 codes .* speaks 8 with 1024"),
        ("", "target_bandwidths", [], "target_bandwidths"),
        ("", "codebook_size", 2048, "2048 codes"),
        ("", "sample_rate", 48000, "at 48000 Hz"),
        ("", "downsample_factor", 160, "downsample_factor is 160"),
        ("", "strides", [2, 1], "strides is"),
        ("", "channel_ratios", [1, 2], "channel_ratios is"),
        ("", "kernel_size", 4, "kernel_size is 4"),
        ("acoustic_model_config", "model_type", "encodec", "model_type is 'encodec'"),
        ("acoustic_model_config", "upsampling_ratios", [8, 5, 4, 2], "product is 960"),
        ("acoustic_model_config", "downsampling_ratios", [8, 5, 4, 2], "product is 320"),
        ("semantic_model_config", "model_type", "wavlm", "model_type is 'wavlm'"),
        ("semantic_model_config", "do_stable_layer_norm", True, "do_stable_layer_norm is True"),
        ("semantic_model_config", "feat_extract_norm", "layer", "feat_extract_norm is 'layer'"),
        ("semantic_model_config", "conv_bias", True, "conv_bias is True"),
        ("semantic_model_config", "hidden_act", "gelu_new", "hidden_act is 'gelu_new'"),
        ("semantic_model_config", "num_attention_heads", 7, "num_attention_heads is 7"),
        ("semantic_model_config", "conv_kernel", [10, 3], "conv_kernel is"),
        ("", "sample_rate", 0, "sample_rate is 0"),
        ("", "channel_ratios", 1, "channel_ratios is 1"),
        ("semantic_model_config", "hidden_size", -768, "hidden_size is -768; a size or an id is from 0"),
    ],
)
def test_what_is_not_followed_is_refused_by_name(
    tmp_path: Path, place: str, key: str, value: object, message: str
) -> None:
    raw: dict[str, Any] = copy.deepcopy(PUBLISHED)
    (raw[place] if place else raw)[key] = value
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path, raw)


@pytest.mark.parametrize(("key", "default"), [("hidden_size", 768), ("conv_dim", (512,) * 7)])
def test_null_stands_for_the_default_that_others_are_measured_by(tmp_path: Path, key: str, default: object) -> None:
    raw: dict[str, Any] = copy.deepcopy(PUBLISHED)
    raw["semantic_model_config"] |= {key: None, "num_attention_heads": 12, "conv_kernel": [10, 3, 3, 3, 3, 2, 2]}
    assert getattr(read(tmp_path, raw).semantic, key) == default


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("n_q", 12, "12 codebooks"),
        ("ratios", [8, 5, 4, 2], "frames of 320"),
        ("semantic_techer", "wavlm_base_plus", "semantic_techer is 'wavlm_base_plus'"),
        ("vq_scale", 2, "vq_scale is 2"),
        ("downsample_mode", "avg", "downsample_mode is 'avg'"),
    ],
)
def test_the_first_form_too(tmp_path: Path, key: str, value: object, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path, {**FIRST_FORM, key: value})


def test_bosons_file_gives_the_same_codec(tmp_path: Path) -> None:
    weights = random_weights()
    native = open_codec(tmp_path, str(write_native(tmp_path / "native", weights)))
    boson = open_codec(tmp_path, str(write_boson(tmp_path / "boson", weights)))
    assert boson.source.label.endswith("model.pth")
    for one, other in zip(loaded(native), loaded(boson), strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            torch.testing.assert_close(other[name], value, rtol=1e-6, atol=1e-7)


def loaded(codec: StoredCodec) -> list[dict[str, Tensor]]:
    return [module.state_dict() for module in load_codec(codec, torch.device("cpu"), torch.float32)]


def test_the_codec_decodes_what_it_encoded_in_the_dtype_asked_for(tmp_path: Path) -> None:
    decoder, encoder = load_codec(
        open_codec(tmp_path, str(write_native(tmp_path, random_weights()))), torch.device("cpu"), torch.bfloat16
    )
    codes = encoder.encode(torch.randn(9600, generator=torch.Generator().manual_seed(1)))
    context = decoder.context_frames
    window = torch.nn.functional.pad(codes, (0, 0, context, context))[None]
    with torch.no_grad():
        samples = decoder(window, torch.tensor([-context]), torch.tensor([len(codes)]))
    assert samples.shape == (1, 9600) and samples.dtype is torch.bfloat16 and samples.isfinite().all()
    assert encoder.fc.weight.dtype is torch.float32


@pytest.mark.parametrize("subfolder", ["audio_tokenizer", "codec", "higgs-audio-v2-tokenizer", "somewhere/else"])
def test_the_codec_is_found_in_the_models_folder(tmp_path: Path, subfolder: str) -> None:
    write_boson(tmp_path / subfolder, random_weights())
    entry = {"audio_tokenizer_class": "X", "audio_tokenizer_name_or_path": "somewhere/else"}
    (tmp_path / "processor_config.json").write_text(json.dumps({"audio_tokenizer": entry}))
    assert open_codec(tmp_path, None).source.label == str(tmp_path / subfolder / "model.pth")


def test_an_absolute_path_of_the_processor_is_followed(tmp_path: Path) -> None:
    codec = write_native(tmp_path / "away", random_weights())
    (tmp_path / "lm").mkdir()
    entry = {"audio_tokenizer_name_or_path": str(codec)}
    (tmp_path / "lm" / "processor_config.json").write_text(json.dumps({"audio_tokenizer": entry}))
    assert open_codec(tmp_path / "lm", None).source.label == str(codec / "model.safetensors")


def test_what_the_user_names_goes_first_and_may_be_a_file(tmp_path: Path) -> None:
    write_native(tmp_path / "codec", random_weights())
    named = write_boson(tmp_path / "named", random_weights()) / "model.pth"
    assert open_codec(tmp_path, str(named)).source.label == str(named)


def test_a_copy_of_the_language_model_is_not_taken_for_the_codec(tmp_path: Path) -> None:
    """The published folder has such a copy, under the name that the codec would have."""
    folder = write_boson(tmp_path / "codec", random_weights())
    save_file({"model.layers.0.mlp.up_proj.weight": torch.zeros(2, 2)}, folder / "model.safetensors")
    assert open_codec(tmp_path, None).source.label.endswith("model.pth")
    (folder / "model.pth").unlink()
    with pytest.raises(CheckpointError, match=r"holds the language model, not the codec: fetch .*model\.pth"):
        open_codec(tmp_path, None)


@pytest.mark.parametrize("place", ["a" * 300, "~nobody-has-this-name/codec"])
@pytest.mark.parametrize("named_by", ["the user", "the processor"])
def test_a_place_that_cannot_be_looked_at_is_told_so(tmp_path: Path, place: str, named_by: str) -> None:
    """As one inside another user's folder cannot: transformers records the path on the machine that saved the model."""
    (tmp_path / "processor_config.json").write_text(json.dumps({"audio_tokenizer": place}))
    with pytest.raises(CheckpointError, match=r"the codec at .* cannot be opened \(.*\): name the folder"):
        codec_place(tmp_path, place if named_by == "the user" else None)


def test_no_codec_says_where_it_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "processor_config.json").write_text('{"audio_tokenizer": "bosonai/higgs-audio-v2-tokenizer"}')
    with pytest.raises(CheckpointError) as told:
        open_codec(tmp_path, None)
    for place in ("audio_tokenizer", "codec", "higgs-audio-v2-tokenizer", "bosonai/higgs-audio-v2-tokenizer"):
        assert str(tmp_path / place) in str(told.value)
    assert "`codec`" in str(told.value)
    with pytest.raises(CheckpointError, match="there is no codec at"):
        open_codec(tmp_path, str(tmp_path / "none"))
    (tmp_path / "codec").mkdir()
    (tmp_path / "codec" / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor model\.pth"):
        open_codec(tmp_path, None)


@pytest.mark.parametrize("write", [write_native, write_boson])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unheard_of.weight": torch.zeros(1)}, "holds unheard_of.weight, unknown"),
        ({"encoder.block.9.bias": torch.zeros(1)}, "holds encoder.block.9.bias, unknown"),
        ({"fc2.bias": None}, "lacks fc2.bias"),
        ({"fc.bias": None}, "lacks fc.bias"),
        ({"quantizer.quantizers.7.codebook.embed": None}, "lacks quantizer.quantizers.7.codebook.embed"),
        ({"fc.weight": torch.zeros(18, 3)}, "has shape"),
    ],
)
def test_every_tensor_is_accounted_for(tmp_path: Path, write: Any, change: dict[str, Any], message: str) -> None:
    weights = {**random_weights(), **change}
    codec = open_codec(tmp_path, str(write(tmp_path, {n: v for n, v in weights.items() if v is not None})))
    with pytest.raises(CheckpointError, match=message):
        load_codec(codec, META, torch.bfloat16)


def test_a_codec_is_checked_without_memory(tmp_path: Path) -> None:
    codec = open_codec(tmp_path, str(write_boson(tmp_path, random_weights())))
    for module in load_codec(codec, META, torch.bfloat16):
        assert all(value.is_meta for value in module.state_dict().values())
