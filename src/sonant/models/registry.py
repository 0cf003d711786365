"""Which family a checkpoint folder belongs to. Families are imported only when one is asked for.

A family is a package with two modules: `load`, and `describe` for what can be told without loading.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import torch

from sonant.config import EngineConfig
from sonant.errors import CheckpointError
from sonant.models.base import SpeechModel
from sonant.models.description import Description, Footprint

FAMILIES = {"qwen3_tts": "sonant.models.qwen3_tts"}


def load_model(
    folder: Path, config: EngineConfig, device: torch.device, dtype: torch.dtype, codec_dtype: torch.dtype
) -> SpeechModel:
    """Read the folder's config.json for its `model_type` and let that family load it."""
    model: SpeechModel = _family_module(folder, "load").load(folder, config, device, dtype, codec_dtype)
    return model


def describe(folder: Path) -> Description:
    """Read the folder's config files only."""
    description: Description = _family_module(folder, "describe").describe(folder)
    return description


def check_model(folder: Path, config: EngineConfig, dtype: torch.dtype, codec_dtype: torch.dtype) -> Footprint:
    """Read config files and weight headers; raises `CheckpointError` for what would stop `load_model`."""
    footprint: Footprint = _family_module(folder, "describe").check(folder, config, dtype, codec_dtype)
    return footprint


def _family_module(folder: Path, part: str) -> ModuleType:
    path = folder / "config.json"
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder; give the folder of a published checkpoint")
    if not path.is_file():
        raise CheckpointError(f"{folder} holds no config.json, so it is not a checkpoint folder")
    try:
        family = json.loads(path.read_text(encoding="utf-8")).get("model_type")
    except (ValueError, AttributeError, OSError) as e:
        raise CheckpointError(f"{path} cannot be read as a JSON object: {e}") from e
    if not isinstance(family, str) or family not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise CheckpointError(f"{path}: model_type {family!r} is not one that Sonant speaks ({known})")
    return importlib.import_module(f"{FAMILIES[family]}.{part}")
