"""What a request to Qwen3-TTS may set, by the names of the published generation_config.json.

`subtalker_*` governs the codebooks after the first. A checkpoint's own defaults precede those of the official library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sonant.models.speech_spec import StagedNumber
from sonant.sampling import Knob, Sampling, resolve

_MOST = 2**31 - 1
_TEMPERATURE: dict[str, Any] = {"default": 0.9, "low": 1e-3, "high": 100.0}
_TOP_K: dict[str, Any] = {"default": 50, "low": 0, "high": _MOST}
_TOP_P: dict[str, Any] = {"default": 1.0, "low": 1e-6, "high": 1.0}

KNOBS = (
    Knob(name="greedy", default=False, help="always choose the likeliest code"),
    Knob(name="do_sample", default=True, help="false: always choose the likeliest first code of a frame"),
    Knob(name="temperature", help="randomness of the choice of a frame's first code", **_TEMPERATURE),
    Knob(name="top_k", help="how many of the likeliest codes to choose among; 0: all", **_TOP_K),
    Knob(name="top_p", help="probability mass of the codes to choose among", **_TOP_P),
    Knob(name="repetition_penalty", default=1.05, low=0.01, high=100.0, help="penalty on codes said before; 1: none"),
    Knob(name="subtalker_dosample", default=True, help="like do_sample, for the codebooks after the first"),
    Knob(name="subtalker_temperature", help="like temperature, for the codebooks after the first", **_TEMPERATURE),
    Knob(name="subtalker_top_k", help="like top_k, for the codebooks after the first", **_TOP_K),
    Knob(name="subtalker_top_p", help="like top_p, for the codebooks after the first", **_TOP_P),
)


def with_defaults(values: Mapping[str, Any]) -> tuple[Knob, ...]:
    """The knobs with a generation_config.json's values as defaults; `BadSampling` names one that is out of range."""
    return tuple(replace(k, default=k.checked(values[k.name])) if k.name in values else k for k in KNOBS)


def staged_numbers(knobs: tuple[Knob, ...]) -> tuple[StagedNumber, ...]:
    """The numbers that a prompt sets in its row; `greedy` and a do_sample switch are one number there."""
    of = {knob.name: StagedNumber.of(knob) for knob in knobs}
    floats = ("temperature", "top_p", "repetition_penalty", "subtalker_temperature", "subtalker_top_p")
    return (
        StagedNumber("seed", shape=(2,)),
        StagedNumber("frame_limit", low=1),
        StagedNumber("trailing_length", low=0),
        StagedNumber("greedy", low=0, high=1),
        of["top_k"],
        StagedNumber("subtalker_greedy", low=0, high=1),
        of["subtalker_top_k"],
        *(of[name] for name in floats),
    )


def staged_values(knobs: tuple[Knob, ...], sampling: Sampling) -> dict[str, Any]:
    """Checked values of the staged numbers that sampling decides."""
    values: dict[str, Any] = resolve(knobs, sampling)
    greedy, samples, subtalker = (values.pop(name) for name in ("greedy", "do_sample", "subtalker_dosample"))
    values |= {"greedy": int(greedy or not samples), "subtalker_greedy": int(greedy or not subtalker)}
    return values
