"""Finds the family that a checkpoint folder belongs to. Only this module lists families; the rest of Sonant names none.

A family is a package here that says what it is called (`TITLE`) and which config.json is its own (`matches`). Its other
modules are imported only when they are needed:

    prompter   load_prompter(folder, config): what lays requests out, without torch and weights
    load       load(folder, config, device, dtype, codec_dtype, host): the model
    describe   describe(folder) and check(folder, …): what is known without loading
    knobs      KNOBS: what a request may set
    synthetic  KINDS, SIZES, write_checkpoint: random weights in the published layout
    workload   workloads(sizes): the shapes with which it calls each op, for benchmarks and tuning
    hub        NAMES, FILES, BESIDE: where it is published, and which of those files are needed
"""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from sonant.config import EngineConfig
from sonant.errors import CheckpointError
from sonant.sampling import Knob

if TYPE_CHECKING:  # The command line is built from the list of families, and must not import torch for it.
    import torch

    from sonant.models.base import SpeechModel
    from sonant.models.description import Description, Footprint
    from sonant.models.prompt import Prompter
    from sonant.models.spec import ModelSpec
    from sonant.models.weights import HostMemory

FAMILIES = ("sonant.models.qwen3_tts", "sonant.models.higgs_audio_v2", "sonant.models.voxcpm2")


def load_model(
    folder: Path,
    config: EngineConfig,
    device: torch.device,
    dtype: torch.dtype,
    codec_dtype: torch.dtype,
    host: HostMemory | None = None,
) -> SpeechModel:
    """Find the folder's family and let it load the model; `host` holds the weights that do not stay on the device."""
    model: SpeechModel = _module_for(folder, "load").load(folder, config, device, dtype, codec_dtype, host)
    model.spec = _with_cache_of(config, model.spec)
    return model


def load_prompter(folder: Path, config: EngineConfig) -> Prompter:
    """The half of the folder's model that lays prompts out, exactly as the model's own `prompter` does."""
    prompter: Prompter = _module_for(folder, "prompter").load_prompter(folder, config)
    return prompter


def describe(folder: Path) -> Description:
    """Read the folder's config files only."""
    description: Description = _module_for(folder, "describe").describe(folder)
    return description


def check_model(folder: Path, config: EngineConfig, dtype: torch.dtype, codec_dtype: torch.dtype) -> Footprint:
    """Read config files and weight headers; raises `CheckpointError` for what would stop `load_model`."""
    footprint: Footprint = _module_for(folder, "describe").check(folder, config, dtype, codec_dtype)
    return replace(footprint, spec=_with_cache_of(config, footprint.spec))


def _with_cache_of(config: EngineConfig, spec: ModelSpec) -> ModelSpec:
    if config.kv_cache_dtype is None:
        return spec
    import torch

    return spec.with_kv_dtype(torch.float8_e4m3fn)


def hub_module(folder: Path) -> ModuleType:
    """The module `hub` of the folder's family, found by config.json alone."""
    return _module_for(folder, "hub")


def titles() -> str:
    """The families' names as people know them."""
    return ", ".join(importlib.import_module(family).TITLE for family in FAMILIES)


def family_names() -> tuple[str, ...]:
    return tuple(family.rsplit(".", 1)[-1] for family in FAMILIES)


def family_module(name: str, part: str) -> ModuleType:
    """One of a family's modules, by the family's short name."""
    (family,) = (f for f in FAMILIES if f.rsplit(".", 1)[-1] == name)
    return importlib.import_module(f"{family}.{part}")


def all_knobs() -> dict[str, list[Knob]]:
    """Every knob of every family, by name: for command lines, which are built before a model is known."""
    found: dict[str, list[Knob]] = {}
    for knob in (knob for name in family_names() for knob in family_module(name, "knobs").KNOBS):
        found.setdefault(knob.name, []).append(knob)
    return found


def _module_for(folder: Path, part: str) -> ModuleType:
    path = folder / "config.json"
    try:
        is_folder, has_config = folder.is_dir(), path.is_file()
    except OSError as e:  # such as a folder above it that this user may not enter
        raise CheckpointError(f"{folder} cannot be opened: {e.strerror}; give a folder that this user can read") from e
    if not is_folder:
        raise CheckpointError(f"{folder} is not a folder; give the folder of a published checkpoint")
    if not has_config:
        raise CheckpointError(f"{folder} holds no config.json, so it is not a checkpoint folder")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as e:
        raise CheckpointError(f"{path} cannot be read as a JSON object: {e}") from e
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} cannot be read as a JSON object: it holds something else")
    for family in FAMILIES:
        if importlib.import_module(family).matches(config):
            return importlib.import_module(f"{family}.{part}")
    told = ", ".join(f"{key} {config[key]!r}" for key in ("model_type", "architecture") if key in config)
    raise CheckpointError(f"{path}: {told or 'no model_type'} is not one that Sonant speaks ({titles()})")
