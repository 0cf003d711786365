"""The per-row state of Qwen3-TTS: what the host sets once, and what the steps keep on the device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sonant.errors import BadSampling
from sonant.models.base import Field
from sonant.models.qwen3_tts.checkpoint import Modules
from sonant.models.qwen3_tts.config import Qwen3TTSConfig
from sonant.types import Sampling

_GREATEST_TEMPERATURE = 100.0
COUNTED = ("position", "frame", "status")
"""What every frame step moves on, side by side."""


@dataclass(frozen=True)
class Limits:
    """Sizes of row state, how long a text may be, and the runaway guard: frames that so many tokens may take."""

    trailing_tokens: int
    ring_frames: int
    chunk_frames: int  # the most that the codec is given at once
    budget_frames: int
    budget_frames_per_token: float
    segment_chars: int | None = None  # of a text at once

    def frame_budget(self, tokens: int) -> int:
        return self.budget_frames + math.ceil(self.budget_frames_per_token * tokens)


def staged_fields() -> tuple[Field, ...]:
    ints = ("frame_limit", "trailing_length", "greedy", "top_k", "subtalker_greedy", "subtalker_top_k")
    floats = ("temperature", "top_p", "repetition_penalty", "subtalker_temperature", "subtalker_top_p")
    return (
        Field("seed", (2,), torch.int32),
        *(Field(name, (), torch.int32) for name in ints),
        *(Field(name, (), torch.float32) for name in floats),
    )


def state_fields(config: Qwen3TTSConfig, modules: Modules, limits: Limits) -> tuple[Field, ...]:
    talker, dtype = config.talker, modules.talker.codec_head.weight.dtype
    decoder, codec_dtype = modules.decoder, modules.decoder.pre_conv.conv.weight.dtype
    return (
        *(Field(name, (), torch.int32) for name in (*COUNTED, "codec_position", "codec_frame")),
        Field("input", (talker.hidden_size,), dtype),
        Field("trailing", (limits.trailing_tokens, talker.hidden_size), dtype),
        Field("seen", (talker.vocab_size,), torch.bool),
        Field("codes", (limits.ring_frames, talker.num_code_groups), torch.int32),
        Field("codec_tails", (decoder.tails_size,), codec_dtype),
        Field("codec_ring", decoder.ring_shape(limits.chunk_frames), codec_dtype, row_dim=2),
    )


def draw_values(fields: Mapping[str, Tensor], index: Tensor | None = None, prefix: str = "") -> dict[str, Tensor]:
    """The tensors of a `Draw` for rows `index`, or for all that the fields are of."""
    values = {name: fields[prefix + name] for name in ("greedy", "temperature", "top_k", "top_p")}
    return values if index is None else {name: value[index] for name, value in values.items()}


def sampling_values(sampling: Sampling, seed: int) -> dict[str, Any]:
    """Checked values of the staged fields, from sampling parameters with nothing left unset."""
    values: dict[str, Any] = {
        "seed": np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32).view(np.int32),
        "greedy": int(not sampling.do_sample),
        "subtalker_greedy": int(not sampling.subtalker_dosample),
        "repetition_penalty": _checked("repetition_penalty", sampling.repetition_penalty, 0.01, 100),
    }
    for prefix in ("", "subtalker_"):
        for name, low, high in (("temperature", 1e-3, _GREATEST_TEMPERATURE), ("top_p", 1e-6, 1.0)):
            values[prefix + name] = _checked(prefix + name, getattr(sampling, prefix + name), low, high)
        top_k = getattr(sampling, prefix + "top_k")
        values[prefix + "top_k"] = int(_checked(prefix + "top_k", top_k, 0, 2**31 - 1, whole=True))
    return values


def _checked(name: str, value: Any, low: float, high: float, *, whole: bool = False) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not low <= value <= high or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        raise BadSampling(f"{name} must be {kind} from {low:g} to {high:g}, not {value!r}")
    return float(value)
