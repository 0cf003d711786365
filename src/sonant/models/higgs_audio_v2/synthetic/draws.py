"""Draws each random tensor so widely that activations stay near one, sound stays finite, and every part matters.

One dimension of the residual stream is the same at every position: embeddings set it and no layer writes to it, so a
weight that reads it in a head's row is a constant bias to a logit. With that the end of speech is made impossible, or
likely.
"""

from __future__ import annotations

import math

import torch

from sonant.models.higgs_audio_v2.synthetic.presets import CODEBOOKS, CODES, STREAM_EOS
from sonant.models.synthetic_tensors import Edit, Shape

STEADY = 0  # the dimension
STEADY_VALUE = 4.0  # about the size of the residual stream after all layers at full size: about one after the norm
HEAD_SPREAD = 1.5


def draw_language_model(name: str, shape: Shape, generator: torch.Generator) -> torch.Tensor:
    normal = torch.randn(shape, generator=generator, device=generator.device)
    if "norm" in name:
        return 1.0 + 0.2 * normal  # each drawn by itself, so that confusing the norms of text and audio shows
    if "embed_tokens" in name:
        normal[:, STEADY] = STEADY_VALUE
        return normal
    if "embed_audio_tokens" in name:
        normal /= CODEBOOKS**0.5  # since the codebooks' vectors are added
        normal[:, STEADY] = STEADY_VALUE / CODEBOOKS
        return normal
    normal /= shape[1] ** 0.5
    if name.endswith(("o_proj.weight", "down_proj.weight")):
        normal[STEADY] = 0.0
    return normal * HEAD_SPREAD if "lm_head" in name else normal


def end_of_speech(gain: float, bias: float) -> Edit:
    """An edit that scales every codebook's EOS row of the audio head, and adds a constant to its logit."""

    def edit(head: torch.Tensor) -> None:
        rows = head[STREAM_EOS :: CODES + 2]
        rows *= gain
        rows[:, STEADY] = bias

    return edit


def draw_codec(name: str, shape: Shape, generator: torch.Generator) -> torch.Tensor:
    leaf = name.rsplit(".", 1)[-1]
    if leaf == "inited":
        return torch.ones(shape, device=generator.device)
    normal = torch.randn(shape, generator=generator, device=generator.device)
    if leaf == "alpha":
        return 0.5 + normal.abs().clamp(max=1.5)
    if leaf in ("cluster_size", "original0"):
        return 0.3 + 0.4 * torch.rand(shape, generator=generator, device=generator.device)
    if leaf == "embed_avg":
        return 4.5 * normal  # the sums behind `embed`: larger, so that confusing the two shows
    if leaf in ("embed", "original1", "masked_spec_embed"):
        return normal
    if "norm" in name and leaf == "weight":
        return 1.0 + 0.1 * normal
    if leaf == "bias":
        return 0.05 * normal
    # A transposed convolution with a kernel of twice its stride adds two taps in each sample.
    fan_in = 2 * shape[0] if ".conv_t1." in name else math.prod(shape[1:])
    normal /= fan_in**0.5
    if ("res_unit" in name) and ".conv2." in name:  # the end of a residual branch: undamped, their sum blows up
        normal *= 0.3
    return normal
