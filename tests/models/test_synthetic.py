"""Random checkpoints have the published layout, and are the same on every machine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from published_names import published
from sonant.errors import CheckpointError
from sonant.models.qwen3_tts.config import Kind, Qwen3TTSConfig
from sonant.models.qwen3_tts.synthetic.presets import Size
from sonant.models.qwen3_tts.synthetic.shapes import codec_shapes, model_shapes
from sonant.models.qwen3_tts.synthetic.writer import write_checkpoint, write_configs


def config_of(tmp_path: Path, kind: Kind, size: Size) -> Qwen3TTSConfig:
    return write_configs(tmp_path, kind, size, tokenizer_from=None)


@pytest.mark.parametrize(("size", "tensors"), [("0.6b", 478), ("1.7b", 480)])
def test_base_models_have_the_published_tensors(tmp_path: Path, size: Size, tensors: int) -> None:
    shapes = model_shapes(config_of(tmp_path, "base", size))
    assert len(shapes) == tensors
    assert shapes == published(f"{size}_base")


@pytest.mark.parametrize("kind", ["custom_voice", "voice_design"])
def test_other_kinds_lack_only_the_speaker_encoder(tmp_path: Path, kind: Kind) -> None:
    expected = {n: s for n, s in published("1.7b_base").items() if not n.startswith("speaker_encoder.")}
    assert model_shapes(config_of(tmp_path, kind, "1.7b")) == expected


def test_the_codec_has_the_published_tensors(tmp_path: Path) -> None:
    shapes = codec_shapes(config_of(tmp_path, "base", "0.6b").codec)
    assert len(shapes) == 496
    assert shapes == published("codec")


@pytest.mark.parametrize(
    ("name", "total", "magnitude"),
    [
        ("base/model", -179.8286, 1981483.9588),
        ("custom/model", -510.6188, 1950391.7152),
        ("design/model", 143.8260, 1949681.7435),
        ("base/speech_tokenizer/model", 99888.0888, 1373067.7860),
    ],
)
def test_weights_are_those_the_golden_files_were_made_from(
    tiny_checkpoints: dict[str, Path], name: str, total: float, magnitude: float
) -> None:
    checkpoint, _, file = name.partition("/")
    tensors = load_file(tiny_checkpoints[checkpoint] / f"{file}.safetensors").values()
    assert sum(t.double().sum().item() for t in tensors) == pytest.approx(total, abs=1e-3)
    assert sum(t.double().abs().sum().item() for t in tensors) == pytest.approx(magnitude, abs=1e-3)


def test_all_kinds_share_one_codec(tiny_checkpoints: dict[str, Path]) -> None:
    codecs = [(folder / "speech_tokenizer/model.safetensors").read_bytes() for folder in tiny_checkpoints.values()]
    assert codecs[0] == codecs[1] == codecs[2]


def test_end_of_speech_can_be_made_impossible(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, kind="custom_voice", eos_gain=0.0)
    eos = Qwen3TTSConfig.read(tmp_path).talker.codec_eos_token_id
    head = load_file(tmp_path / "model.safetensors")["talker.codec_head.weight"]
    assert not head[eos].any()
    assert head[eos + 1].any()


def test_weights_can_be_stored_in_half_precision_while_the_codec_stays_whole(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, kind="base", dtype=torch.bfloat16)
    for file, dtype in (("model", "BF16"), ("speech_tokenizer/model", "F32")):
        with safe_open(tmp_path / f"{file}.safetensors", "pt") as f:
            assert {f.get_slice(name).get_dtype() for name in f.keys()} == {dtype}  # noqa: SIM118


def test_another_seed_gives_another_voice(tmp_path: Path, tiny_checkpoints: dict[str, Path]) -> None:
    write_checkpoint(tmp_path, kind="base", seed=5)
    name = "talker.codec_head.weight"
    mine, usual = (load_file(p / "model.safetensors")[name] for p in (tmp_path, tiny_checkpoints["base"]))
    assert not torch.equal(mine, usual)


def test_a_checkpoint_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"precious")
    with pytest.raises(CheckpointError, match=r"already holds a model\.safetensors"):
        write_checkpoint(tmp_path, kind="base")
    assert (tmp_path / "model.safetensors").read_bytes() == b"precious"


def test_a_missing_real_vocabulary_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere/vocab\.json is missing"):
        write_checkpoint(tmp_path / "model", kind="base", tokenizer_from=tmp_path / "nowhere")
