"""Which family a checkpoint folder belongs to. Families are imported only when one is loaded."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import torch

from sonant.config import EngineConfig
from sonant.errors import CheckpointError
from sonant.models.base import SpeechModel

FAMILIES = {"qwen3_tts": "sonant.models.qwen3_tts.load"}


def load_model(
    folder: Path, config: EngineConfig, device: torch.device, dtype: torch.dtype, codec_dtype: torch.dtype
) -> SpeechModel:
    """Read the folder's config.json for its `model_type` and let that family load it."""
    path = folder / "config.json"
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder; give the folder of a published checkpoint")
    if not path.is_file():
        raise CheckpointError(f"{folder} holds no config.json, so it is not a checkpoint folder")
    try:
        family = json.loads(path.read_text(encoding="utf-8")).get("model_type")
    except (ValueError, AttributeError, OSError) as e:
        raise CheckpointError(f"{path} cannot be read as a JSON object: {e}") from e
    if family not in FAMILIES:
        raise CheckpointError(f"{path}: model_type {family!r} is not one that Sonant speaks ({', '.join(FAMILIES)})")
    module = importlib.import_module(FAMILIES[family])
    model: SpeechModel = module.load(folder, config, device, dtype, codec_dtype)
    return model
