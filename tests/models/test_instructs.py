"""A checkpoint says that it takes an instruct exactly if an instruct changes its prompt."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from sonant.bundled import bundled_voice
from sonant.config import EngineConfig
from sonant.models.qwen3_tts.config import Qwen3TTSConfig
from sonant.models.qwen3_tts.describe import check
from sonant.models.qwen3_tts.prompt import PromptBuilder
from sonant.models.qwen3_tts.tokenizer import TextTokenizer
from sonant.types import SpeechRequest


def instructs(folder: Path) -> bool:
    return check(folder, EngineConfig(), torch.float32, torch.float32).spec.instructs


def heeds(folder: Path) -> bool:
    builder = PromptBuilder(Qwen3TTSConfig.read(folder), TextTokenizer(folder))
    plain, told = (builder.layout(SpeechRequest(text="hello", instruct=words)) for words in (None, "slowly"))
    return not np.array_equal(plain.text, told.text)


@pytest.mark.parametrize(("kind", "size"), [("custom", "1b7"), ("custom", "0b6"), ("custom", "0b"), ("design", "0b6")])
def test_it_is_told_of_each_kind_and_size(
    few_codebooks: Mapping[str, Path], tmp_path: Path, kind: str, size: str
) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(few_codebooks[kind], folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tts_model_size": size}))
    assert instructs(folder) is heeds(folder) is (kind == "design" or size == "1b7")


def test_a_base_checkpoint_takes_none(few_codebooks: Mapping[str, Path]) -> None:
    assert not instructs(few_codebooks["base"])


def test_the_built_in_voice_takes_none() -> None:
    folder = bundled_voice()
    assert folder is not None and not instructs(folder) and not Qwen3TTSConfig.read(folder).instructs
