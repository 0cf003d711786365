"""A config that needs arithmetic we do not have is refused with its key; keys that change nothing are let through."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sonant.config import EngineConfig
from sonant.errors import CheckpointError
from sonant.models.qwen3_tts.config import CodecConfig, Qwen3TTSConfig
from sonant.models.qwen3_tts.prompter import load_prompter

MODEL, CODEC = "config.json", "speech_tokenizer/config.json"
# the file of each part, and the keys that lead to it
PARTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "model": (MODEL, ()),
    "talker": (MODEL, ("talker_config",)),
    "predictor": (MODEL, ("talker_config", "code_predictor_config")),
    "speaker": (MODEL, ("speaker_encoder_config",)),
    "codec": (CODEC, ()),
    "decoder": (CODEC, ("decoder_config",)),
    "encoder": (CODEC, ("encoder_config",)),
}
STACKS = ("talker", "predictor")
TRANSFORMERS = (*STACKS, "decoder", "encoder")
YARN = {"rope_type": "yarn", "factor": 4.0}


@pytest.fixture
def folder(tiny_checkpoints: Mapping[str, Path], tmp_path: Path) -> Path:
    """The files of a base checkpoint without its weights."""
    made = tmp_path / "checkpoint"
    return shutil.copytree(tiny_checkpoints["base"], made, ignore=shutil.ignore_patterns("*.safetensors"))


def change(folder: Path, part: str, values: Mapping[str, Any], drop: tuple[str, ...] = ()) -> None:
    file, keys = PARTS[part]
    whole = json.loads((folder / file).read_text())
    inner = whole
    for key in keys:
        inner = inner[key]
    inner |= values
    for key in drop:
        del inner[key]
    (folder / file).write_text(json.dumps(whole))


def refused(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        Qwen3TTSConfig.read(folder)
    return str(caught.value)


REFUSED = [
    *((part, "attention_bias", True, "False") for part in TRANSFORMERS),
    *((part, "mlp_bias", True, "False") for part in TRANSFORMERS),
    *((part, "hidden_act", "relu", "'silu'") for part in (*STACKS, "decoder")),
    *((part, "rope_scaling", YARN, "rope_type 'default' without scaling") for part in TRANSFORMERS),
    *((part, "rope_scaling", {"type": "linear", "factor": 2}, "rope_type 'default'") for part in TRANSFORMERS),
    *((part, "rope_scaling", {"rope_type": "default", "factor": 2}, "without scaling") for part in TRANSFORMERS),
    *((part, "rope_parameters", YARN, "rope_type 'default' without scaling") for part in TRANSFORMERS),
    *((part, "partial_rotary_factor", 0.5, "1.0") for part in TRANSFORMERS),
    *((part, "head_dim", 17, "an even number") for part in TRANSFORMERS),
    *((part, "num_attention_heads", 5, "a multiple of num_key_value_heads") for part in TRANSFORMERS),
    *((part, "use_sliding_window", True, "False") for part in STACKS),
    *((part, "layer_types", ["full_attention", "sliding_attention"], "'full_attention'") for part in STACKS),
    *((part, "tie_word_embeddings", True, "False") for part in STACKS),
    *((part, "use_qk_norm", False, "True") for part in STACKS),
    *((part, "use_qk_norm", True, "False") for part in ("decoder", "encoder")),
    ("decoder", "layer_types", ["full_attention"], "'sliding_attention'"),
    ("decoder", "num_semantic_quantizers", 2, "1"),
    ("encoder", "hidden_act", "silu", "'gelu'"),
    ("encoder", "use_causal_conv", False, "True"),
    ("encoder", "pad_mode", "reflect", "'constant'"),
    ("encoder", "use_conv_shortcut", True, "False"),
    ("encoder", "audio_channels", 2, "1"),
    ("encoder", "use_streaming", True, "False"),
    ("encoder", "frame_rate", 25.0, "half of what"),
    ("encoder", "_frame_rate", 25.0, "half of what"),
    ("encoder", "frame_rate", "fast", "half of what"),
    ("decoder", "sliding_window", 0, "a number from 1 on"),
    ("talker", "rope_scaling", "yarn", "rope_type 'default'"),
    ("talker", "layer_types", "full_attention", "'full_attention'"),
]


@pytest.mark.parametrize(("part", "key", "value", "supports"), REFUSED)
def test_what_is_not_followed_is_refused_by_file_key_and_value(
    folder: Path, part: str, key: str, value: object, supports: str
) -> None:
    if key == "use_sliding_window":
        change(folder, part, {"sliding_window": 4096})
    change(folder, part, {key: value})
    said, (file, keys) = refused(folder), PARTS[part]
    assert str(folder / file) in said and keys[-1] in said
    assert f"{key} is {value!r}; Sonant supports only" in said and supports in said


HARMLESS: list[tuple[str, dict[str, Any]]] = [
    *((part, {"attention_dropout": 0.1}) for part in TRANSFORMERS),
    *((part, {"rope_scaling": None, "attention_bias": None}) for part in TRANSFORMERS),
    *((part, {"rope_scaling": {"rope_type": "default"}}) for part in TRANSFORMERS),
    *((part, {"sliding_window": 4096, "use_sliding_window": False}) for part in STACKS),
    *((part, {"sliding_window": None, "use_sliding_window": True}) for part in STACKS),
    *((part, {"tie_word_embeddings": False, "use_qk_norm": True}) for part in STACKS),
    ("model", {"tie_word_embeddings": True}),  # at the top there is no head that could be tied
    ("talker", {"rope_scaling": {"mrope_section": [6, 5, 5], "interleaved": False, "type": "default"}}),
    ("decoder", {"layer_types": ["sliding_attention", "sliding_attention"]}),
    ("encoder", {"trim_right_ratio": 0.5, "upsample_groups": 1, "sliding_window": 10}),
    ("encoder", {"frame_rate": None, "_frame_rate": 12.5}),
]


@pytest.mark.parametrize(("part", "values"), HARMLESS, ids=str)
def test_what_changes_nothing_is_let_through(folder: Path, part: str, values: dict[str, Any]) -> None:
    before = Qwen3TTSConfig.read(folder)
    change(folder, part, values)
    assert Qwen3TTSConfig.read(folder) == before


@pytest.mark.parametrize("part", TRANSFORMERS)
def test_the_newer_spelling_of_rotary_positions_is_read_like_the_old(folder: Path, part: str) -> None:
    change(folder, part, {"rope_theta": 1234.0})
    expected = Qwen3TTSConfig.read(folder)
    newer = {"rope_parameters": {"rope_type": "default", "rope_theta": 1234.0}}
    change(folder, part, newer, drop=("rope_theta",))
    assert Qwen3TTSConfig.read(folder) == expected
    change(folder, part, {"rope_theta": 5.0})
    assert "rope_theta is 5.0, but rope_parameters.rope_theta is 1234.0" in refused(folder)
    change(folder, part, {}, drop=("rope_theta", "rope_parameters"))
    assert "lacks 'rope_theta'" in refused(folder)


@pytest.mark.parametrize("rate", [float("inf"), float("nan")])
def test_a_sampling_rate_that_is_no_number_is_refused(folder: Path, rate: float) -> None:
    change(folder, "encoder", {"sampling_rate": rate, "frame_rate": 12.5})
    assert "frame_rate is 12.5; Sonant supports only half of what" in refused(folder)


def test_a_window_of_the_codec_is_followed(folder: Path) -> None:
    change(folder, "decoder", {"sliding_window": 5})
    assert CodecConfig.read(folder / "speech_tokenizer").decoder.sliding_window == 5


@pytest.mark.parametrize(
    ("part", "values", "says"),
    [
        ("talker", {"num_code_groups": 8}, "num_code_groups is 16, but num_code_groups is 8"),
        ("predictor", {"num_code_groups": 8}, "code_predictor_config.num_code_groups is 8"),
        ("predictor", {"vocab_size": 4096}, "code_predictor_config.vocab_size is 4096, but codebook_size is 2048"),
        ("decoder", {"num_quantizers": 8}, "encoder_valid_num_quantizers is 16, but num_quantizers is 8"),
        ("speaker", {"enc_dim": 32}, "enc_dim is 32, but the talker's hidden_size is 64"),
        ("speaker", {"sample_rate": 16000}, "sample_rate is 16000, but the codec's is 24000"),
        ("speaker", {"enc_dilations": [1]}, "the number of enc_dilations is 1"),
        ("codec", {"input_sample_rate": 16000}, "input_sample_rate is 16000, but output_sample_rate is 24000"),
        ("codec", {"encoder_valid_num_quantizers": 8}, "encoder_valid_num_quantizers is 8, but num_quantizers is 16"),
    ],
)
def test_parts_that_do_not_fit_each_other_are_refused(
    folder: Path, part: str, values: dict[str, Any], says: str
) -> None:
    change(folder, part, values)
    assert says in refused(folder)


def test_a_codec_of_other_codebooks_than_the_talkers_is_refused(folder: Path) -> None:
    change(folder, "codec", {"encoder_valid_num_quantizers": 8})
    change(folder, "decoder", {"num_quantizers": 8})
    assert "talker_config.num_code_groups is 16, but num_quantizers is 8" in refused(folder)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"hidden_size": "64"}, "hidden_size must be a whole number, not '64'"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a number, not nan"),
        ({"codec_language_id": {"english": "2050"}}, "codec_language_id: english must be a whole number"),
        ({"hidden_size": -64}, "hidden_size is -64; a size or an id is from 0 to 16777216"),
        ({"max_position_embeddings": 10**30}, "a size or an id is from 0 to 16777216"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(folder: Path, values: dict[str, Any], says: str) -> None:
    change(folder, "talker", values)
    assert says in refused(folder)


# Frame sizes. The official code cuts codes and sound by decode_upsample_rate and encode_downsample_rate, whatever frame
# size its modules have; with other values it would cut within frames, above all for in-context clones.


@pytest.mark.parametrize("rate", [960, 1919, 1921, 3840])
def test_a_frame_size_that_the_modules_do_not_make_is_refused(folder: Path, rate: int) -> None:
    change(folder, "codec", {"decode_upsample_rate": rate})
    assert f"decode_upsample_rate is {rate}, but the decoder's rate is 1920" in refused(folder)
    change(folder, "codec", {"decode_upsample_rate": 1920, "encode_downsample_rate": rate})
    assert f"encode_downsample_rate is {rate}, but the encoder's rate is 1920" in refused(folder)


def test_another_frame_size_is_read_if_all_agree(folder: Path) -> None:
    change(folder, "decoder", {"upsample_rates": [5, 4, 3]})
    change(folder, "encoder", {"upsampling_ratios": [6, 5, 4], "frame_rate": 100.0})
    change(folder, "codec", {"decode_upsample_rate": 240, "encode_downsample_rate": 240})
    assert Qwen3TTSConfig.read(folder).codec.samples_per_frame == 240


@pytest.mark.parametrize(
    ("part", "values", "says"),
    [
        ("model", {"tts_pad_token_id": 10**6}, "tts_pad_token_id is 1000000, but talker_config.text_vocab_size is 384"),
        ("model", {"im_end_token_id": -1}, "im_end_token_id is -1, but talker_config.text_vocab_size is 384"),
        ("talker", {"codec_bos_id": 3072}, "codec_bos_id is 3072, but talker_config.vocab_size is 3072"),
        ("talker", {"codec_language_id": {"english": 5000}}, "codec_language_id: english is 5000, but"),
        ("talker", {"spk_id": {"anna": 3072}}, "spk_id: anna is 3072, but talker_config.vocab_size is 3072"),
        ("talker", {"spk_id": {"anna": -5}}, "spk_id: anna is -5, but talker_config.vocab_size is 3072"),
        ("talker", {"spk_is_dialect": {"anna": "klingon"}}, "anna is 'klingon', which codec_language_id lacks"),
    ],
)
def test_an_id_without_a_vector_of_its_own_is_refused(
    folder: Path, part: str, values: dict[str, Any], says: str
) -> None:
    change(folder, part, values)
    assert says in refused(folder)


def test_a_checkpoint_of_fixed_voices_has_one(folder: Path) -> None:
    change(folder, "model", {"tts_model_type": "custom_voice"})
    change(folder, "talker", {"spk_id": {}})
    assert "spk_id is empty, but a custom_voice checkpoint has voices" in refused(folder)


@pytest.mark.parametrize("spoilt", ["another id", "missing"])
def test_the_tokens_around_a_text_are_the_models_own(folder: Path, spoilt: str) -> None:
    path = folder / "tokenizer_config.json"
    raw = json.loads(path.read_text())
    (number,) = (i for i, entry in raw["added_tokens_decoder"].items() if entry["content"] == "<|im_end|>")
    entry = raw["added_tokens_decoder"].pop(number)
    if spoilt == "another id":
        raw["added_tokens_decoder"]["2"] = entry
    path.write_text(json.dumps(raw))
    says = {"missing": "lacks the token <|im_end|>", "another id": f"<|im_end|> is 2, but config.json's id is {number}"}
    with pytest.raises(CheckpointError, match=re.escape(says[spoilt])):
        load_prompter(folder, EngineConfig())
