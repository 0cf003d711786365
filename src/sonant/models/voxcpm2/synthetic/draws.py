"""Draws each random tensor so widely that activations stay near one, latents stay bounded, and every part matters.

Norms stand between what is fed back and all that reads it, so a patch of latents is at most its noise plus a few units,
however many came before it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch

from sonant.models.synthetic_tensors import Draw, Edit, Shape

STEADY, STEADY_VALUE = 0, 4.0  # the unit before the stop head that is constant, and its value
RESIDUAL = 0.3  # of a residual branch in the codec: undamped, their sum blows up
SOUND = 0.03  # of the codec's last convolution: the level of speech, far from where tanh saturates
_UPSAMPLING = re.compile(r"decoder\.model\.(\d+)\.block\.1\.weight_g")
_BRANCH_END = re.compile(r"\.block\.\d+\.block\.3\.weight_g$")


def draw_model(name: str, shape: Shape, generator: torch.Generator) -> torch.Tensor:
    normal = torch.randn(shape, generator=generator, device=generator.device)
    if "norm" in name:
        return 1.0 + 0.2 * normal
    if name.endswith(".bias"):
        return 0.1 * normal
    if name.endswith("special_token") or "embed_tokens" in name:
        return normal
    return normal / shape[-1] ** 0.5


def end_of_speech(gain: float, bias: float) -> dict[str, Edit]:
    """Edits: `gain` scales the stop head's weights; `bias` is added to the logit of going on, at every step.

    The head has no bias of its own. One unit before it reads nothing, so it is constant, and carries the bias.
    """
    steady = STEADY_VALUE / (1.0 + math.exp(-STEADY_VALUE))  # after its SiLU

    def silence(weight: torch.Tensor) -> None:
        weight[STEADY] = 0.0

    def hold(unit_bias: torch.Tensor) -> None:
        unit_bias[STEADY] = STEADY_VALUE

    def say(head: torch.Tensor) -> None:
        head *= gain
        head[:, STEADY] = head.new_tensor([bias / steady, 0.0])

    return {"stop_proj.weight": silence, "stop_proj.bias": hold, "stop_head.weight": say}


def vae_draw(config: Mapping[str, Any]) -> Draw:
    """For the codec that `config` describes, whose weights are magnitudes (`weight_g`) and directions of any length."""
    rates = config["decoder_rates"]
    last = f"decoder.model.{len(rates) + 3}.weight_g"

    def draw(name: str, shape: Shape, generator: torch.Generator) -> torch.Tensor:
        leaf = name.rsplit(".", 1)[-1]
        if leaf in ("weight_g", "alpha"):
            between = 0.7 + 0.6 * torch.rand(shape, generator=generator, device=generator.device)
            return between if leaf == "alpha" else between * magnitude(name)
        normal = torch.randn(shape, generator=generator, device=generator.device)
        if leaf == "weight_v":
            return normal
        if "scale_embed" in name:
            return 1.0 + 0.2 * normal
        return 0.1 * normal

    def magnitude(name: str) -> float:
        if name == last:
            return SOUND
        if _BRANCH_END.search(name):
            return RESIDUAL
        if found := _UPSAMPLING.fullmatch(name):
            # It is an input's, spread over half as many outputs and taps of twice the stride, two for each sample.
            return float((rates[int(found[1]) - 2] / 2) ** 0.5)
        return 1.0

    return draw
