from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import sonant
from sonant import bundled
from sonant.errors import CheckpointError, ConfigError


@pytest.fixture
def shipped(few_codebooks: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that comes with a voice."""
    folder = tmp_path / "sonant" / "voices" / "english"
    shutil.copytree(few_codebooks["custom"], folder)
    bundled.write_sums(folder)
    monkeypatch.setattr("sonant.bundled.resources.files", lambda package: tmp_path / package)
    return folder


def test_without_a_path_the_built_in_voice_is_loaded(shipped: Path) -> None:
    with sonant.load(device="cpu") as engine:
        assert engine.speak("Hello.", max_frames=2).duration_s > 0


@pytest.mark.parametrize("name", ["model.safetensors", "speech_tokenizer/model.safetensors", "vocab.json"])
def test_a_damaged_file_is_named(shipped: Path, name: str) -> None:
    content = bytearray((shipped / name).read_bytes())
    content[len(content) // 2] ^= 1
    (shipped / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{name} is damaged; install"):
        sonant.load(device="cpu")
    (shipped / name).unlink()
    with pytest.raises(CheckpointError, match=f"lacks {name}"):
        sonant.load(device="cpu")


def test_a_build_without_a_voice_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sonant.bundled.resources.files", lambda package: tmp_path / package)
    with pytest.raises(ConfigError, match="give the folder"):
        sonant.load(device="cpu")
