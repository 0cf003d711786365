"""A prompter is built from config files and tokenizer alone, and refuses what the model would refuse."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from prompt_cases import TEXT
from sonant.config import EngineConfig
from sonant.errors import CheckpointError, ConfigError, SonantError
from sonant.models.registry import load_model, load_prompter
from sonant.types import SpeechRequest

WEIGHTS = (".safetensors", ".pth", ".bin")
CODEC = "audio_tokenizer"


@pytest.fixture
def copies(
    tmp_path: Path, tiny_checkpoints: Mapping[str, Path], tiny_higgs: Path, tiny_voxcpm2: Path
) -> Mapping[str, Path]:
    """Copies of the folders without any weights."""
    folders = {"custom": tiny_checkpoints["custom"], "higgs": tiny_higgs, "voxcpm2": tiny_voxcpm2}
    for name, folder in folders.items():
        shutil.copytree(folder, tmp_path / name, ignore=lambda _, names: [n for n in names if n.endswith(WEIGHTS)])
    return {name: tmp_path / name for name in folders}


def refused(folder: Path, config: EngineConfig) -> tuple[type[SonantError], str]:
    """The prompter's error, which must have the same words as the model's."""
    with pytest.raises(SonantError) as by_prompter:
        load_prompter(folder, config)
    with pytest.raises(SonantError) as by_model:
        load_model(folder, config, torch.device("meta"), torch.float32, torch.float32)
    assert str(by_model.value) == str(by_prompter.value)
    return by_prompter.type, str(by_prompter.value)


@pytest.mark.parametrize("name", ["custom", "higgs", "voxcpm2"])
def test_weights_are_not_looked_for(copies: Mapping[str, Path], name: str) -> None:
    assert not [path for path in copies[name].rglob("*") if path.suffix in WEIGHTS]
    prompter = load_prompter(copies[name], EngineConfig())
    prompter.check(prompter.prompt(SpeechRequest(text=TEXT)))


@pytest.mark.parametrize("name", ["custom", "voxcpm2"])
def test_a_codec_elsewhere_is_refused_where_the_folder_has_its_own(copies: Mapping[str, Path], name: str) -> None:
    kind, message = refused(copies[name], EngineConfig(codec="anywhere"))
    assert kind is ConfigError and "its own folder; leave --codec out" in message


def test_a_codec_may_lie_elsewhere(copies: Mapping[str, Path], tmp_path: Path) -> None:
    here = load_prompter(copies["higgs"], EngineConfig())
    shutil.move(copies["higgs"] / CODEC, tmp_path / "elsewhere")
    kind, message = refused(copies["higgs"], EngineConfig())
    assert kind is CheckpointError and "has no codec" in message
    moved = load_prompter(copies["higgs"], EngineConfig(codec=str(tmp_path / "elsewhere")))
    assert moved.spec == here.spec
    kind, message = refused(copies["higgs"], EngineConfig(codec=str(tmp_path / "nowhere")))
    assert kind is CheckpointError and "there is no codec at" in message


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("custom", "config.json"),
        ("custom", "speech_tokenizer/config.json"),
        ("custom", "vocab.json"),
        ("custom", "generation_config.json"),
        ("higgs", "tokenizer.json"),
        ("higgs", f"{CODEC}/config.json"),
        ("voxcpm2", "tokenizer.json"),
    ],
)
def test_a_broken_file_is_named(copies: Mapping[str, Path], name: str, file: str) -> None:
    (copies[name] / file).write_text('{"half": ', encoding="utf-8")
    kind, message = refused(copies[name], EngineConfig())
    assert kind is CheckpointError and Path(file).name in message


def test_a_codec_of_other_numbers_is_refused(copies: Mapping[str, Path]) -> None:
    path = copies["higgs"] / CODEC / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "sample_rate": 16_000}), encoding="utf-8")
    kind, message = refused(copies["higgs"], EngineConfig())
    assert kind is CheckpointError and "16000 Hz" in message


def test_the_operators_budget_goes_before_the_familys(copies: Mapping[str, Path]) -> None:
    for folder in copies.values():
        usual, short = (
            load_prompter(folder, config).prompt(SpeechRequest(text=TEXT)).max_frames
            for config in (EngineConfig(), EngineConfig(budget_s=0.5, budget_s_per_token=0.001))
        )
        assert usual > short >= 1
