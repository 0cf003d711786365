"""A folder of Higgs Audio V2 speaks the same in every published form, or is refused with the name of what is wrong."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import sonant
from sonant import EngineConfig, Speech
from sonant.errors import CheckpointError
from sonant.models.higgs_audio_v2.config import HiggsConfig
from sonant.models.higgs_audio_v2.knobs import KNOBS
from sonant.models.higgs_audio_v2.synthetic.writer import write_checkpoint
from sonant.models.registry import check_model

CODEC = "audio_tokenizer"
TEXT_HEAD = "text_lm_head.weight"
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def boson(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as Boson published it: three shards under its own names, and the codec elsewhere and pickled."""
    folder = tmp_path_factory.mktemp("boson") / "model"
    write_checkpoint(folder, form="boson", codec_form="boson", codec_folder=folder.parent / "codec")
    return folder


@pytest.fixture
def folder(tiny_higgs: Path, tmp_path: Path) -> Path:
    """A copy that tests may change. Its files are hard links, so a change must replace the file."""
    return shutil.copytree(tiny_higgs, tmp_path / "model", copy_function=os.link)


@pytest.fixture
def configs(tiny_higgs: Path, tmp_path: Path) -> Path:
    """A folder without weights: errors in its configs are reported before weights are looked for."""
    return shutil.copytree(tiny_higgs, tmp_path / "configs", ignore=shutil.ignore_patterns("*.safetensors"))


@pytest.fixture(scope="module")
def usual(tiny_higgs: Path) -> Speech:
    return said(tiny_higgs)


def said(folder: Path, codec: Path | None = None) -> Speech:
    config = EngineConfig(max_rows=1, codec=None if codec is None else str(codec))
    with sonant.load(folder, device="cpu", config=config) as engine:
        return engine.speak("hello the world", seed=3, max_frames=12)


def same(speech: Speech, usual: Speech) -> None:
    np.testing.assert_array_equal(speech.frames, usual.frames)
    np.testing.assert_allclose(speech.samples, usual.samples, rtol=0, atol=1e-5)


def refused(folder: Path, codec: Path | None = None) -> str:
    """The error of a check, which comes before a load, touches no weight, and stops at whatever would stop the load."""
    with pytest.raises(CheckpointError) as told:
        check_model(folder, EngineConfig(codec=None if codec is None else str(codec)), torch.float32, torch.float32)
    return str(told.value)


def rewrite(path: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(path)
    change(tensors)
    path.unlink()
    save_file(tensors, path)


def edit(path: Path, changes: dict[str, Any], within: str | None = None) -> None:
    whole = json.loads(path.read_text())
    inner = whole if within is None else whole[within]
    inner |= {key: value for key, value in changes.items() if value is not ...}
    for key in [key for key, value in changes.items() if value is ...]:
        del inner[key]
    path.unlink()
    path.write_text(json.dumps(whole))


# The same speech from every form


def test_bosons_shards_and_pickle_speak_as_transformers_form_does(boson: Path, usual: Speech) -> None:
    same(said(boson, boson.parent / "codec"), usual)
    same(said(boson, boson.parent / "codec" / "model.pth"), usual)


@pytest.mark.parametrize("place", ["codec", "codec/model.safetensors"])
def test_the_codec_may_lie_elsewhere(folder: Path, usual: Speech, place: str) -> None:
    (folder / CODEC).rename(folder.parent / "codec")
    same(said(folder, folder.parent / place), usual)


def test_a_pickled_codec_in_the_models_folder_speaks_the_same(folder: Path, boson: Path, usual: Speech) -> None:
    """The folder also has a copy of the language model under the codec's name, as the published one does."""
    shutil.rmtree(folder / CODEC)
    shutil.copytree(boson.parent / "codec", folder / CODEC)
    os.link(folder / "model.safetensors", folder / CODEC / "model.safetensors")
    same(said(folder), usual)


def test_the_text_head_is_never_read(folder: Path, usual: Speech) -> None:
    rewrite(folder / "model.safetensors", lambda t: t[TEXT_HEAD].fill_(float("nan")))
    weights = [check_model(folder, EngineConfig(), torch.float32, torch.float32).weight_bytes]
    same(said(folder), usual)
    rewrite(folder / "model.safetensors", lambda t: t.pop(TEXT_HEAD))
    weights.append(check_model(folder, EngineConfig(), torch.float32, torch.float32).weight_bytes)
    assert weights[0] == weights[1]


def test_a_converted_file_may_hold_the_heads_under_their_old_names_too(folder: Path, usual: Speech) -> None:
    def double(tensors: Tensors) -> None:
        for head in ("audio_lm_head.weight", TEXT_HEAD):
            tensors[f"audio_decoder_proj.{head}"] = torch.full_like(tensors[head], float("nan"))

    rewrite(folder / "model.safetensors", double)
    same(said(folder), usual)


# Tensors


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("model.layers.1.audio_mlp.up_proj.weight", None, "lacks model.layers.1.audio_mlp.up_proj.weight"),
        ("model.layers.0.audio_input_layernorm.weight", None, "lacks model.layers.0.audio_input_layernorm.weight"),
        ("audio_lm_head.weight", None, "lacks audio_lm_head.weight"),
        ("model.layers.3.mlp.up_proj.weight", torch.zeros(192, 96), "holds model.layers.3.mlp.up_proj.weight, unknown"),
        ("model.audio_encoder.weight", torch.zeros(2), "holds model.audio_encoder.weight, unknown"),
        ("audio_lm_head.weight", torch.zeros(8192, 96), "audio_lm_head.weight ends at row 8192 of 8208"),
        ("model.norm.weight", torch.zeros(95), "model.norm.weight ends at row 95 of 96"),
        ("model.layers.0.self_attn.k_proj.weight", torch.zeros(32, 95), "self_attn.k_proj.weight has shape [32, 95]"),
        ("model.norm.weight", torch.zeros(96, dtype=torch.int64), "model.norm.weight is stored as torch.int64"),
    ],
)  # fmt: skip
def test_a_tensor_that_is_missing_unknown_or_mis_shaped_is_named(
    folder: Path, name: str, value: torch.Tensor | None, says: str
) -> None:
    rewrite(folder / "model.safetensors", lambda t: t.pop(name) if value is None else t.update({name: value}))
    assert says in refused(folder)
    with pytest.raises(CheckpointError) as told:
        sonant.load(folder, device="cpu")
    assert says in str(told.value)


def test_bosons_names_are_told_as_they_are_stored(boson: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(boson, tmp_path / "model")
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    name = "layers.0.audio_post_attention_layernorm.weight"
    rewrite(folder / index[name], lambda t: t.update({name: torch.zeros(7)}))
    assert f"{name} ends at row 7 of 96" in refused(folder, boson.parent / "codec")


def test_a_shard_that_is_cut_short_or_missing_is_named(boson: Path, tmp_path: Path) -> None:
    folder, codec = shutil.copytree(boson, tmp_path / "model"), boson.parent / "codec"
    shard = folder / "model-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    assert f"{shard} (" in refused(folder, codec) and "not a whole safetensors file" in refused(folder, codec)
    shard.unlink()
    assert f"{shard} is missing" in refused(folder, codec)


@pytest.mark.parametrize("keep", [0, 1000, -1000])
def test_a_pickle_that_is_cut_short_is_named(tiny_higgs: Path, boson: Path, tmp_path: Path, keep: int) -> None:
    codec = shutil.copytree(boson.parent / "codec", tmp_path / "codec")
    path = codec / "model.pth"
    path.write_bytes(path.read_bytes()[:keep])
    assert f"{path} is not a whole file of tensors" in refused(tiny_higgs, codec)


# The codec


def test_a_codec_that_is_not_there_or_is_none_is_told(configs: Path, tiny_higgs: Path, tmp_path: Path) -> None:
    assert f"there is no codec at {tmp_path / 'none'}" in refused(tiny_higgs, tmp_path / "none")
    told = refused(tiny_higgs, tiny_higgs)
    assert "model_type is 'higgs_audio_v2'" in told and "name its own folder" in told
    shutil.rmtree(configs / CODEC)
    assert "has no codec" in refused(configs) and "--codec" in refused(configs)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"target_bandwidths": [0.5, 1, 1.5, 2, 4]}, "a codec of 16 codebooks"),
        ({"sample_rate": 16_000}, "at 16000 Hz"),
        ({"codebook_size": 2048}, "with 2048 codes"),
        ({"acoustic_model_config": {f"{way}sampling_ratios": [8, 5, 4, 2] for way in ("up", "down")}}, "of 320"),
    ],
)
def test_a_codec_of_another_version_is_refused(configs: Path, changes: dict[str, Any], says: str) -> None:
    edit(configs / CODEC / "config.json", changes)
    assert says in refused(configs) and "fetch the codec that was published for it" in refused(configs)


# Configs


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tie_word_embeddings": True}, "tie_word_embeddings is True"),
        ({"num_codebooks": 4}, "num_codebooks is 4; Sonant supports only 8"),
        ({"codebook_size": 1024}, "audio_stream_bos_id is 1024, but the number of codes is 1022"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"num_key_value_heads": 4}, "num_attention_heads is 6"),
        ({"head_dim": 15}, "head_dim is 15"),
        ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, "rope_parameters is"),
        ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", "factor": 32.0}}, "'low_freq_factor'"),
        ({"rope_parameters": ..., "rope_theta": 5e5}, "lacks 'rope_parameters'"),
        ({"audio_delay_token_id": 271}, "audio_delay_token_id is 271"),
        ({"vocab_size": 280}, "config.json's vocab_size is 280"),
        ({"hidden_size": ...}, "lacks 'hidden_size'"),
        ({"codebook_size": ...}, "lacks 'codebook_size'"),
        ({"hidden_size": "96"}, "hidden_size"),
    ],
    ids=str,
)
def test_what_changes_the_arithmetic_is_refused_by_name(configs: Path, changes: dict[str, Any], says: str) -> None:
    edit(configs / "config.json", changes)
    assert says in refused(configs)


@pytest.mark.parametrize(
    ("within", "changes", "says"),
    [
        (None, {"audio_adapter_type": "stack"}, "audio_adapter_type is 'stack'"),
        (None, {"audio_num_codebooks": 4}, "audio_num_codebooks is 4"),
        (None, {"use_delay_pattern": False}, "use_delay_pattern is False"),
        (None, {"audio_embed_avg": True}, "audio_embed_avg is True"),
        (None, {"use_audio_out_self_attention": 1}, "use_audio_out_self_attention is 1"),
        (None, {"audio_dual_ffn_layers": [0, 1]}, "audio_dual_ffn_layers is (0, 1)"),
        (None, {"audio_ffn_intermediate_size": 96}, "audio_ffn_intermediate_size is 96"),
        ("text_config", {"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling is"),
        ("text_config", {"hidden_act": "relu"}, "hidden_act is 'relu'"),
        (None, {"text_config": []}, "text_config should hold"),
    ],
    ids=str,
)
def test_so_it_is_in_bosons_form(
    boson: Path, tmp_path: Path, within: str | None, changes: dict[str, Any], says: str
) -> None:
    folder = shutil.copytree(boson, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors*"))
    edit(folder / "config.json", changes, within)
    assert says in refused(folder, boson.parent / "codec")


@pytest.mark.parametrize(
    ("changes", "defaults"),
    [
        ({}, (7, 2)),
        ({"ras_win_len": 3, "ras_win_max_num_repeat": 1}, (3, 1)),
        ({"ras_win_len": None}, (0, 2)),
        ({"ras_win_max_num_repeat": None}, (0, 2)),
        ({"ras_win_len": ..., "ras_win_max_num_repeat": ...}, (7, 2)),
        ({"temperature": None, "top_k": None}, (7, 2)),
    ],
    ids=str,
)
def test_sampling_is_the_folders_own_and_null_takes_ras_off(
    configs: Path, changes: dict[str, Any], defaults: tuple[int, int]
) -> None:
    edit(configs / "generation_config.json", changes)
    own = {knob.name: knob.default for knob in HiggsConfig.read(configs).knobs}
    assert (own["ras_win_len"], own["ras_win_max_num_repeat"]) == defaults
    assert (own["temperature"], own["top_k"], own["top_p"]) == (1.0, 50, 0.95)


def test_a_folder_without_generation_config_has_the_published_defaults(configs: Path) -> None:
    (configs / "generation_config.json").unlink()
    assert HiggsConfig.read(configs).knobs == KNOBS


@pytest.mark.parametrize(
    ("key", "value"),
    [("ras_win_len", 100), ("ras_win_len", -1), ("ras_win_max_num_repeat", 0), ("temperature", 0), ("top_p", 2),
     ("top_k", "50"), ("do_sample", 1)],
)  # fmt: skip
def test_sampling_that_cannot_be_is_refused_by_name(configs: Path, key: str, value: object) -> None:
    edit(configs / "generation_config.json", {key: value})
    assert f"generation_config.json: {key} must be" in refused(configs)
