"""Puts a VoxCPM2 folder together: what the registry calls."""

from __future__ import annotations

from pathlib import Path

import torch

from sonant.config import EngineConfig
from sonant.errors import ConfigError
from sonant.models.spec import Budget
from sonant.models.voxcpm2.config import VoxCPM2Config
from sonant.models.voxcpm2.model import Modules, VoxCPM2
from sonant.models.voxcpm2.modules import VoxCPM2Modules
from sonant.models.voxcpm2.prompt import PromptBuilder
from sonant.models.voxcpm2.row_state import Limits
from sonant.models.voxcpm2.tokenizer import TextTokenizer
from sonant.models.voxcpm2.vae_weights import load_vae
from sonant.models.weights import allocate, load_into, open_weights

_BUDGET = Budget(base_s=1.6, s_per_token=0.96)  # ten patches, and six for each token


def load(
    folder: Path, options: EngineConfig, device: torch.device, dtype: torch.dtype, codec_dtype: torch.dtype
) -> VoxCPM2:
    if options.codec is not None:
        raise ConfigError("this model's codec is in its own folder; leave --codec out")
    config = VoxCPM2Config.read(folder)
    builder = PromptBuilder(config, TextTokenizer(folder))
    weights = open_weights(folder)
    decoder, encoder = load_vae(folder, config.vae, device, codec_dtype, patch_size=config.patch_size)
    with torch.device("meta"):
        empty = VoxCPM2Modules(config)
    model = allocate(empty, device, dtype)
    load_into(model, weights)
    model.prepare(config.max_positions, config.patch_size)
    frame_s = config.patch_size * decoder.config.samples_per_latent / decoder.config.out_sample_rate
    limits = Limits(options.frame_sizes(frame_s), _BUDGET.with_options(options))
    return VoxCPM2(config, Modules(model, decoder, encoder), builder, limits)
