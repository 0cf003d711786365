"""Renames tensors of transformers' layout as in Boson's first layout: the inverse of transformers' conversion.

The loaders rename the other way. The two were written independently, so that each tests the other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

from sonant.models.weights.naming import rename_by

Tensors = dict[str, torch.Tensor]

_LANGUAGE_MODEL = (
    (r"^model\.embed_audio_tokens\.embed_audio_tokens\.", "audio_codebook_embeddings."),
    (r"^model\.", ""),
    (r"^(audio|text)_lm_head\.", r"audio_decoder_proj.\1_lm_head."),
)
_DAC_LAYERS = ("snake1", "conv1", "snake2", "conv2")  # of a residual unit, in order
_CODEC = (
    (r"^quantizer\.quantizers\.", "quantizer.vq.layers."),
    (r"\.codebook\.", "._codebook."),
    (r"^fc\.", "fc_prior."),
    (r"^fc(\d)\.", r"fc_post\1."),
    # Each of these convolutions is wrapped in a module, except those of one tap.
    (r"^((?:en|de)coder_semantic\.(?:conv_blocks\.\d+\.(?:res_units\.\d+\.)?)?conv)\.(weight|bias)$", r"\1.conv.\2"),
    (r"^((?:en|de)coder_semantic\.conv_blocks\.\d+\.res_units\.\d+\.conv1)\.weight$", r"\1.conv.weight"),
    (r"^(decoder_semantic\.conv[12])\.weight$", r"\1.conv.weight"),
)
_MAGNITUDE = 3.0  # directions are this much longer than weights, so that a loader that ignores magnitudes is noticed


def language_model_name(name: str) -> str:
    return rename_by(_LANGUAGE_MODEL)(name)


def codec_name(name: str, blocks: int) -> str:
    """`blocks` is the number of blocks in the acoustic encoder, and in its decoder."""
    part, _, rest = name.partition(".")
    if part == "acoustic_encoder":
        return _dac_name("encoder.block", rest, blocks, first_unit=0, ends=("snake1", "conv1"), first_end=3)
    if part == "acoustic_decoder":
        return _dac_name("decoder_2.model", rest, blocks, first_unit=2, ends=("snake1", "conv_t1"), first_end=0)
    return rename_by(_CODEC)(name)


def _dac_name(stack: str, rest: str, blocks: int, *, first_unit: int, ends: tuple[str, str], first_end: int) -> str:
    """Boson has one list for a stack: a convolution, the blocks, a snake, a convolution. So it has for each block."""
    around = {"conv1": 0, "snake1": blocks + 1, "conv2": blocks + 2}
    found = re.fullmatch(r"block\.(\d+)\.(?:res_unit(\d)\.)?(\w+)\.(\w+)", rest)
    if found is None:
        layer, leaf = rest.split(".")
        return f"{stack}.{around[layer]}.{leaf}"
    block = f"{stack}.{int(found[1]) + 1}.block"
    if found[2] is None:
        return f"{block}.{first_end + ends.index(found[3])}.{found[4]}"
    return f"{block}.{first_unit + int(found[2]) - 1}.block.{_DAC_LAYERS.index(found[3])}.{found[4]}"


def weight_normed(name: str, weight: torch.Tensor) -> Tensors:
    """Magnitude and direction along the first dimension, in place of the tensor called `name`."""
    magnitude = weight.flatten(1).square().sum(1).sqrt().view(-1, *[1] * (weight.dim() - 1))
    return {f"{name}_g": magnitude, f"{name}_v": weight * _MAGNITUDE}


def is_weight_normed(name: str) -> bool:
    """By its name in transformers' layout: all convolutions of the acoustic half."""
    return name.startswith("acoustic_") and name.endswith(".weight")


def codec_tensors(tensors: Mapping[str, torch.Tensor], blocks: int) -> Tensors:
    """What `model.pth` holds."""
    held: Tensors = {}
    for name, value in tensors.items():
        stored = codec_name(name, blocks)
        held |= weight_normed(stored, value) if is_weight_normed(name) else {stored: value}
    return held
