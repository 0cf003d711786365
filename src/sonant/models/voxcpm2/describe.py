"""Tells what a VoxCPM2 folder holds and whether it would load, without reading a weight."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sonant.config import EngineConfig
from sonant.models.description import Description, Footprint
from sonant.models.voxcpm2.config import VoxCPM2Config
from sonant.models.voxcpm2.prompt import FAMILY, PromptBuilder
from sonant.models.voxcpm2.vae_config import VAEConfig

if TYPE_CHECKING:
    import torch


def describe(folder: Path) -> Description:
    config = VoxCPM2Config.read(folder)
    vae = VAEConfig.from_dict(config.vae, f"{folder / 'config.json'}: audio_vae_config")
    return Description(
        family=FAMILY,
        kind="base",
        size=f"{config.lm.num_hidden_layers} + {config.residual_layers} layers of {config.lm.hidden_size}",
        voices=(),
        languages=PromptBuilder.languages,
        clones=True,
        designs=True,
        sample_rate=vae.out_sample_rate,
        frame_rate=vae.out_sample_rate / (config.patch_size * vae.samples_per_latent),
    )


def check(folder: Path, options: EngineConfig, dtype: torch.dtype, codec_dtype: torch.dtype) -> Footprint:
    """Load onto the meta device: every check of a real load is made, and no weight is read."""
    import torch  # imported here, since `describe` does not need it

    from sonant.models.voxcpm2.load import load

    model = load(folder, options, torch.device("meta"), dtype, codec_dtype)
    parts = model.modules
    tensors = [t for m in (parts.model, parts.decoder, parts.encoder) for t in m.state_dict().values()]
    return Footprint(weight_bytes=sum(t.numel() * t.element_size() for t in tensors), spec=model.spec)
