"""Finds the codec's file beside the language models' and fills its two modules from it.

It is published as a pickle, `audiovae.pth`, with weight norm not folded; as in the official loader, a copy in
safetensors takes precedence.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from sonant.errors import CheckpointError
from sonant.models.published import agree
from sonant.models.voxcpm2.vae import VAEDecoder
from sonant.models.voxcpm2.vae_config import VAEConfig
from sonant.models.voxcpm2.vae_encoder import VAEEncoder
from sonant.models.voxcpm2.weight_blocks import encoder_blocks
from sonant.models.weights import (
    HostMemory,
    Naming,
    PickledTensors,
    SafetensorsFile,
    TensorSource,
    allocate,
    load_into,
    rename_by,
)

_STEM = "audiovae"
_BOUNDARIES = "decoder.sr_bin_boundaries"
_UNUSED = "encoder.fc_logvar."  # the log variance with which training sampled around the means
_PATCH_SIZE = 4  # the official default

# Our streaming layers have their convolution inside, as `conv`.
_DECODER_NAMING = Naming(
    rename=rename_by(
        [(r"(?<!_embed)\.(weight|weight_g|weight_v|bias|parametrizations\.weight\.original[01])$", r".conv.\1")]
    )
)


def load_vae(
    folder: Path,
    config: Mapping[str, Any],
    device: torch.device,
    codec_dtype: torch.dtype,
    *,
    patch_size: int = _PATCH_SIZE,
    host: HostMemory | None = None,
) -> tuple[VAEDecoder, VAEEncoder]:
    """`config` is config.json's audio_vae_config, and `patch_size` stands beside it there.

    The decoder is prepared and then rounded to `codec_dtype`; the encoder is in float32.
    """
    read = VAEConfig.from_dict(config, f"{folder / 'config.json'}: audio_vae_config")
    source = _open(folder)
    _check_boundaries(source, read)
    with torch.device("meta"):
        decoder, encoder = VAEDecoder(read), VAEEncoder(read, patch_size)
    decoder = allocate(decoder, device, torch.float32)
    load_into(decoder, source, prefix="decoder.", unused=("encoder.", _BOUNDARIES), naming=_DECODER_NAMING)
    decoder.prepare(codec_dtype)
    encoder = allocate(encoder, device, torch.float32, host, encoder_blocks(encoder))
    load_into(encoder, source, prefix="encoder.", unused=("decoder.", _UNUSED))
    return decoder, encoder


def _open(folder: Path) -> TensorSource:
    whole, pickle = folder / f"{_STEM}.safetensors", folder / f"{_STEM}.pth"
    if whole.exists():
        return SafetensorsFile(whole)
    if pickle.exists():
        return PickledTensors(pickle)
    raise CheckpointError(
        f"{folder} has neither {whole.name} nor {pickle.name}, the codec that turns latents into sound: "
        f"fetch {pickle.name}, which is published beside model.safetensors"
    )


def _check_boundaries(source: TensorSource, config: VAEConfig) -> None:
    """Raise unless the stored boundaries, which say what the rows of the conditions are for, agree with the config."""
    stored = source.tensors.get(_BOUNDARIES)
    if stored is None:
        raise CheckpointError(
            f"{source.label} lacks {_BOUNDARIES}: it is no AudioVAE V2; fetch the file that is published beside "
            "model.safetensors"
        )
    if len(stored.shape) != 1 or stored.dtype.is_floating_point:
        raise CheckpointError(
            f"{source.label}: {_BOUNDARIES} should be a line of whole numbers, not {stored.dtype} of shape "
            f"{list(stored.shape)}"
        )
    with source.window() as read:
        values = tuple(int(n) for n in read(_BOUNDARIES, 0, stored.rows))
    agree(source.label, (_BOUNDARIES, values, "sr_bin_boundaries of config.json", config.sr_bin_boundaries))
