"""What a request to Higgs Audio V2 may set, by the names of the published generation_config.json.

Each codebook is sampled by itself: temperature, then top-k, then top-p. RAS (repetition-aware sampling) then looks
back: a code that is in the codebook's last `ras_win_len` rows `ras_win_max_num_repeat` times or more is drawn anew from
all codes, without temperature, top-k or top-p. Defaults are those of the published folder, unless a folder has its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sonant.models.speech_spec import StagedNumber
from sonant.sampling import Knob, Sampling, resolve

MOST_RAS_ROWS = 32  # rows on which RAS can look back; as many of the prompt's are kept
_MOST = 2**31 - 1

KNOBS = (
    Knob(name="greedy", default=False, help="always choose the likeliest code"),
    Knob(name="do_sample", default=True, help="false: choose the likeliest code, though RAS may still draw another"),
    Knob(name="temperature", default=1.0, low=1e-3, high=100.0, help="randomness of the choice of codes"),
    Knob(name="top_k", default=50, low=0, high=_MOST, help="how many of the likeliest codes to choose among; 0: all"),
    Knob(name="top_p", default=0.95, low=1e-6, high=1.0, help="probability mass of the codes to choose among"),
    Knob(name="ras_win_len", default=7, low=0, high=MOST_RAS_ROWS,
         help="latest rows in which RAS counts how often a code occurs; 0: no RAS"),
    Knob(name="ras_win_max_num_repeat", default=2, low=1, high=MOST_RAS_ROWS,
         help="how often a code occurs in them for RAS to draw again"),
)  # fmt: skip


def with_defaults(values: Mapping[str, Any]) -> tuple[Knob, ...]:
    """The knobs with a generation_config.json's values as defaults; `BadSampling` names one that is out of range.

    A null counts as absent, except for RAS: transformers draws without it if either of its two values is null.
    """
    given = {name: value for name, value in values.items() if value is not None}
    if any(values.get(name, 0) is None for name in ("ras_win_len", "ras_win_max_num_repeat")):
        given["ras_win_len"] = 0
    return tuple(replace(k, default=k.checked(given[k.name])) if k.name in given else k for k in KNOBS)


def staged_numbers(knobs: tuple[Knob, ...]) -> tuple[StagedNumber, ...]:
    """The numbers that a prompt sets in its row; `greedy` and `do_sample` are one number there."""
    of = {knob.name: StagedNumber.of(knob) for knob in knobs}
    return (
        StagedNumber("seed", shape=(2,)),
        StagedNumber("frame_limit", low=1),
        StagedNumber("greedy", low=0, high=1),
        *(of[name] for name in ("top_k", "ras_win_len", "ras_win_max_num_repeat", "temperature", "top_p")),
    )


def staged_values(knobs: tuple[Knob, ...], sampling: Sampling) -> dict[str, Any]:
    """Checked values of the staged numbers that sampling decides."""
    values: dict[str, Any] = resolve(knobs, sampling)
    greedy, samples = values.pop("greedy"), values.pop("do_sample")
    values["greedy"] = int(greedy or not samples)
    if greedy:
        values["ras_win_len"] = 0  # so that the likeliest code is never drawn anew
    return values
