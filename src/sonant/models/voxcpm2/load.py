"""Loads a VoxCPM2 folder as a model, for the registry."""

from __future__ import annotations

from pathlib import Path

import torch

from sonant.config import EngineConfig
from sonant.models.voxcpm2.model import Modules, VoxCPM2
from sonant.models.voxcpm2.modules import VoxCPM2Modules
from sonant.models.voxcpm2.prompter import load_prompter
from sonant.models.voxcpm2.vae_weights import load_vae
from sonant.models.voxcpm2.weight_blocks import stack_lanes, text_table
from sonant.models.weights import HostMemory, allocate, load_into, open_weights


def load(
    folder: Path,
    options: EngineConfig,
    device: torch.device,
    dtype: torch.dtype,
    codec_dtype: torch.dtype,
    host: HostMemory | None = None,
) -> VoxCPM2:
    prompter = load_prompter(folder, options)
    config, weights = prompter.config, open_weights(folder)
    decoder, encoder = load_vae(folder, config.vae, device, codec_dtype, patch_size=config.patch_size, host=host)
    with torch.device("meta"):
        empty = VoxCPM2Modules(config)
    model = allocate(empty, device, dtype, host, (*stack_lanes(empty), text_table(empty)), quantize=options.quantize)
    load_into(model, weights)
    model.prepare(prompter.spec.max_positions, config.patch_size)
    return VoxCPM2(prompter, Modules(model, decoder, encoder), options.frame_sizes(prompter.spec.frame_s))
