"""Random VoxCPM2 checkpoints have the published layout, and are the same on every machine."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from published_names import published
from sonant.errors import CheckpointError
from sonant.models.voxcpm2.config import VoxCPM2Config
from sonant.models.voxcpm2.synthetic.shapes import model_shapes, vae_shapes
from sonant.models.voxcpm2.synthetic.vocabulary import CONTROLS
from sonant.models.voxcpm2.synthetic.writer import BOUNDARIES, write_checkpoint, write_configs

GOING_ON, STOPPING = 0, 1  # rows of the stop head


def pickled(folder: Path) -> dict[str, torch.Tensor]:
    held = torch.load(folder / "audiovae.pth", weights_only=True)
    assert set(held) == {"state_dict"}
    tensors: dict[str, torch.Tensor] = held["state_dict"]
    return tensors


def test_the_model_has_the_published_tensors(tmp_path: Path) -> None:
    shapes = model_shapes(write_configs(tmp_path, size="2b"))
    assert len(shapes) == 577
    assert sum(prod(shape) for shape in shapes.values()) == 2_290_004_544
    assert shapes == published("voxcpm2_2b")


def test_the_codec_has_the_published_tensors(tmp_path: Path) -> None:
    shapes = vae_shapes(write_configs(tmp_path, size="2b").vae)
    assert len(shapes) == 312
    assert sum(prod(shape) for name, shape in shapes.items() if name != BOUNDARIES) == 94_213_954
    assert shapes == published("voxcpm2_vae")


def test_the_full_size_is_described_as_published(tmp_path: Path) -> None:
    config = write_configs(tmp_path, size="2b")
    raw = json.loads((tmp_path / "config.json").read_text())
    assert (raw["architecture"], raw["dtype"], raw["max_length"]) == ("voxcpm2", "bfloat16", 8192)
    assert raw["lm_config"]["rope_scaling"]["long_factor"] == raw["lm_config"]["rope_scaling"]["short_factor"]
    assert len(config.rope.factors) == 64
    assert sum(config.rope.factors) == pytest.approx(1024.6951295757358, abs=1e-9)
    assert (config.lm.vocab_size, config.quantizer_dim, config.residual_layers) == (73448, 512, 8)


def test_a_tiny_model_tells_both_lists_of_factors_apart(tiny_voxcpm2: Path) -> None:
    scaling = json.loads((tiny_voxcpm2 / "config.json").read_text())["lm_config"]["rope_scaling"]
    assert scaling["long_factor"] != scaling["short_factor"]
    assert list(VoxCPM2Config.read(tiny_voxcpm2).rope.factors) == scaling["short_factor"]


@pytest.mark.parametrize(
    ("file", "total", "magnitude"),
    [("model.safetensors", 944.2895, 50721.1889), ("audiovae.pth", 4513.3869, 192453.8974)],
)
def test_weights_are_those_the_golden_files_were_made_from(
    tiny_voxcpm2: Path, file: str, total: float, magnitude: float
) -> None:
    held = pickled(tiny_voxcpm2) if file.endswith("pth") else load_file(tiny_voxcpm2 / file)
    tensors = [t.double() for name, t in held.items() if name != BOUNDARIES]
    assert sum(t.sum().item() for t in tensors) == pytest.approx(total, abs=1e-3)
    assert sum(t.abs().sum().item() for t in tensors) == pytest.approx(magnitude, abs=1e-3)


def test_the_codec_is_whole_also_where_the_model_is_half(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, dtype=torch.bfloat16)
    assert {t.dtype for t in load_file(tmp_path / "model.safetensors").values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    vae = pickled(tmp_path)
    boundaries = vae.pop(BOUNDARIES)
    assert {t.dtype for t in vae.values()} == {torch.float32}
    assert boundaries.dtype == torch.int32 and boundaries.tolist() == [20000, 30000, 40000]


def test_the_codec_can_be_written_as_safetensors(tmp_path: Path, tiny_voxcpm2: Path) -> None:
    write_checkpoint(tmp_path, vae_form="safetensors")
    assert not (tmp_path / "audiovae.pth").exists()
    held, expected = load_file(tmp_path / "audiovae.safetensors"), pickled(tiny_voxcpm2)
    assert held.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(held[name], tensor) and held[name].dtype == tensor.dtype


def test_a_loader_must_use_magnitudes_and_the_row_of_its_sample_rate(tiny_voxcpm2: Path) -> None:
    vae = pickled(tiny_voxcpm2)
    for name in (n.removesuffix("_g") for n in vae if n.endswith("weight_g")):
        length = vae[f"{name}_v"].flatten(1).norm(dim=1)
        assert not torch.allclose(length, vae[f"{name}_g"].flatten(), rtol=0.2), name
    for i in range(2, 8):
        for what in ("scale", "bias"):
            rows = vae[f"decoder.sr_cond_model.{i}.{what}_embed.weight"]
            assert torch.cdist(rows, rows)[3, :3].min() > 0.1


@torch.no_grad()
def test_speech_ends_by_chance_or_never(tmp_path: Path, tiny_voxcpm2: Path) -> None:
    """The head has no bias; a unit without inputs stands in for one, so that no state of the model ends speech."""
    write_checkpoint(tmp_path, end=(1.0, 40.0))  # as for the full-size model
    hidden = torch.randn(2000, 64, generator=torch.Generator().manual_seed(0))
    ends = []
    for folder in (tmp_path, tiny_voxcpm2):
        held = load_file(folder / "model.safetensors")
        units = torch.nn.functional.silu(hidden @ held["stop_proj.weight"].T + held["stop_proj.bias"])
        assert (units[:, 0] == units[0, 0]).all()
        logits = units @ held["stop_head.weight"].T
        ends.append((logits[:, STOPPING] > logits[:, GOING_ON]).float().mean())
    never, usual = ends
    assert never == 0.0
    assert 0.02 < usual < 0.6


def test_text_is_tokenised_as_by_sentencepiece(tiny_voxcpm2: Path, tmp_path: Path) -> None:
    write_configs(tmp_path, size="2b")
    for folder in (tiny_voxcpm2, tmp_path):
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        assert {i: tokenizer.id_to_token(i) for i in CONTROLS} == CONTROLS
        assert sorted(tokenizer.get_vocab().values()) == list(range(tokenizer.get_vocab_size()))

        def tokens(text: str, tokenizer: Tokenizer = tokenizer) -> list[str]:
            return list(tokenizer.encode(text, add_special_tokens=False).tokens)

        assert tokens("the end") == ["▁th", "e", "▁", "en", "d"]
        assert tokens("你好，世界") == ["▁你好", "，", "世界"]  # the model itself gets single characters
        assert tokens("人工智能") == ["▁", "人工智能"]
        assert tokens("é😀")[:3] == ["▁", "<0xC3>", "<0xA9>"]
        assert tokenizer.decode(tokenizer.encode("Grüße, 你好 😀!").ids) == "Grüße, 你好 😀!"
        assert tokenizer.encode("a").tokens == ["<s>", "▁a"]  # adds a special token by default, like the published file


def test_a_real_tokenizer_is_taken_whole_or_refused(tmp_path: Path) -> None:
    real = tmp_path / "real"
    write_configs(real, size="tiny")
    write_configs(tmp_path / "model", size="2b", tokenizer_from=real)
    assert (tmp_path / "model/tokenizer.json").read_bytes() == (real / "tokenizer.json").read_bytes()
    with pytest.raises(CheckpointError, match=r"nowhere/tokenizer\.json is missing"):
        write_configs(tmp_path / "other", size="tiny", tokenizer_from=tmp_path / "nowhere")
    (real / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0, "b": 73448}}}')
    with pytest.raises(CheckpointError, match="73449 tokens; the model takes 73448"):
        write_configs(tmp_path / "other", size="2b", tokenizer_from=real)
    assert write_configs(tmp_path / "other", size="tiny", tokenizer_from=real).lm.vocab_size == 73449


def test_there_is_one_kind(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="only one kind"):
        write_checkpoint(tmp_path, kind="voice_design")  # type: ignore[arg-type]


@pytest.mark.parametrize("file", ["model.safetensors", "audiovae.pth", "audiovae.safetensors"])
def test_a_checkpoint_is_never_overwritten(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_bytes(b"precious")
    with pytest.raises(CheckpointError, match=f"already holds a {file}"):
        write_checkpoint(tmp_path)
    assert (tmp_path / file).read_bytes() == b"precious"
