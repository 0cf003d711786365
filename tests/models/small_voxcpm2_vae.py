"""A codec like VoxCPM2's with few channels and random weights, in the published form: weight norm not folded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from sonant.models.voxcpm2.vae import VAEDecoder
from sonant.models.voxcpm2.vae_config import VAEConfig
from sonant.models.voxcpm2.vae_encoder import VAEEncoder

PATCH_SIZE = 4
CONFIG: dict[str, Any] = {
    "encoder_dim": 2,
    "encoder_rates": [2, 5, 8, 8],
    "latent_dim": 6,
    "decoder_dim": 128,
    "decoder_rates": [8, 6, 5, 2, 2, 2],
    "sr_bin_boundaries": [20000, 30000, 40000],
    "sample_rate": 16000,
    "out_sample_rate": 48000,
}
OTHER_RATES = {
    **CONFIG, "encoder_rates": [3, 1, 2], "decoder_dim": 24, "decoder_rates": [1, 3, 3],
    "sr_bin_boundaries": [20000, 24000], "out_sample_rate": 24000,
}  # fmt: skip


def config_of(raw: dict[str, Any]) -> VAEConfig:
    return VAEConfig.from_dict(raw, "config.json")


def random_weights(raw: dict[str, Any], dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Weights by the published names, weight norm folded. Scales are of either sign, and some are zero."""
    g, config = torch.Generator().manual_seed(1), config_of(raw)
    modules = {"decoder": VAEDecoder(config), "encoder": VAEEncoder(config, PATCH_SIZE)}
    shapes = {f"{side}.{n}": v.shape for side, module in modules.items() for n, v in module.state_dict().items()}
    names = {re.sub(r"\.conv\.(weight|bias)$", r".\1", name): shape for name, shape in shapes.items()}
    return {name: _random(name, shape, g).to(dtype) for name, shape in names.items()}


def _random(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    """A weight of such a size that values, and errors, stay about the same from layer to layer."""
    values = torch.randn(shape, generator=generator)
    if name.endswith(("alpha", "scale_embed.weight")):
        values = values.sign() * (values.abs() / 2 + 0.5)
        if name.endswith("sr_cond_model.3.scale_embed.weight"):
            values[:, 1] = 0
        return values
    if name.endswith(".bias"):
        return values / 20
    transposed = re.fullmatch(r"decoder\.model\.\d+\.block\.1\.weight", name)
    fan_in = 2 * shape[0] if transposed else max(1, values[0].numel())
    return values * (0.3 if name.count("block") == 2 else 0.7) / fan_in**0.5


def published(raw: dict[str, Any], weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights in published form: magnitudes, directions of any length, and tensors that inference does not use."""
    width = raw["encoder_dim"] << len(raw["encoder_rates"])
    weights = weights | {
        "encoder.fc_logvar.weight": torch.ones(raw["latent_dim"], width, 3),
        "encoder.fc_logvar.bias": torch.ones(raw["latent_dim"]),
    }
    stored = {"decoder.sr_bin_boundaries": torch.tensor(raw["sr_bin_boundaries"], dtype=torch.int32)}
    for name, value in weights.items():
        if name.endswith(".weight") and "_embed" not in name:
            stored[f"{name}_g"] = value.flatten(1).norm(dim=1).view(-1, 1, 1)
            stored[f"{name}_v"] = 3 * value
        else:
            stored[name] = value
    return stored


def write(folder: Path, stored: dict[str, Tensor], *, pickled: bool = True) -> Path:
    if pickled:
        torch.save({"state_dict": stored}, folder / "audiovae.pth")
    else:
        save_file({name: value.contiguous() for name, value in stored.items()}, folder / "audiovae.safetensors")
    return folder


def decoder_of(raw: dict[str, Any], dtype: torch.dtype) -> VAEDecoder:
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    decoder = VAEDecoder(config_of(raw)).to(wide)
    weights = random_weights(raw, wide)
    own = {name: re.sub(r"\.conv\.(weight|bias)$", r".\1", name) for name in decoder.state_dict()}
    decoder.load_state_dict({name: weights[f"decoder.{stored}"] for name, stored in own.items()})
    decoder.prepare(dtype)
    return decoder


def encoder_of(raw: dict[str, Any]) -> VAEEncoder:
    encoder, weights = VAEEncoder(config_of(raw), PATCH_SIZE), random_weights(raw)
    encoder.load_state_dict({name: weights[f"encoder.{name}"] for name in encoder.state_dict()})
    return encoder
