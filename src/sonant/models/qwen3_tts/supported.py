"""Keys of the published configs that change the arithmetic and that our modules do not read.

Each must have the value that the modules are built for, or the folder is refused by name (`models/published.py`).

Left out because they change nothing that is computed here: dropouts, initialisers, cache switches, mRoPE's sections
(the three axes are always equal), and what only Mimi's decoder reads, such as `trim_right_ratio` and `upsample_groups`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sonant.models.published import WHOLE_GROUPS, Raw, Rule, at_least_one, only

_HARMLESS_IN_ROPE = ("mrope_section", "interleaved", "mrope_interleaved", "rope_theta")


def _all_layers(kind: str) -> Rule:
    def fits(given: Any, _: Raw) -> bool:
        return isinstance(given, list) and all(layer == kind for layer in given)

    return Rule("layer_types", f"{kind!r} for every layer", fits)


def _no_window(given: Any, raw: Raw) -> bool:
    """`sliding_window` alone means nothing: the official classes drop it unless `use_sliding_window` is on."""
    return not given or ("sliding_window" in raw and raw["sliding_window"] is None)


def _plain_rope(given: Any, _: Raw) -> bool:
    if not isinstance(given, Mapping):
        return False
    kinds = [given.get(key) for key in ("rope_type", "type")]
    rest = {k: v for k, v in given.items() if k not in ("rope_type", "type", *_HARMLESS_IN_ROPE)}
    whole = rest.pop("partial_rotary_factor", None) in (None, 1)
    return all(kind in (None, "default") for kind in kinds) and whole and not any(v is not None for v in rest.values())


def _halves_the_rate(given: Any, raw: Raw) -> bool:
    """Officially Mimi's last convolution is built for the ratio of two frame rates; ours is for the published ratio."""
    rate, hop = raw.get("sampling_rate") or 24000, math.prod(raw["upsampling_ratios"])
    if (
        not isinstance(given, int | float)
        or not isinstance(rate, int | float)
        or given <= 0
        or hop <= 0
        or not math.isfinite(rate)
    ):
        return False
    return math.ceil(rate / hop) / given == 2


_ROPE = "rope_type 'default' without scaling"
_HALF = "half of what upsampling_ratios leave of sampling_rate"
ATTENTION = (
    only("attention_bias", False),
    only("mlp_bias", False),
    only("partial_rotary_factor", 1.0),
    Rule("rope_scaling", _ROPE, _plain_rope),
    Rule("rope_parameters", _ROPE, _plain_rope),
    Rule("head_dim", "an even number", lambda given, _: given % 2 == 0),
    WHOLE_GROUPS,
)
LANGUAGE_MODEL = (
    *ATTENTION,
    only("hidden_act", "silu"),
    only("use_qk_norm", True),
    only("tie_word_embeddings", False),
    Rule("use_sliding_window", "False", _no_window),
    _all_layers("full_attention"),
)
CODEC_DECODER = (
    *ATTENTION,
    only("hidden_act", "silu"),
    only("use_qk_norm", False),
    only("num_semantic_quantizers", 1),  # the official decoder has one whatever the file says
    at_least_one("sliding_window"),  # a position sees itself
    _all_layers("sliding_attention"),
)
CODEC_ENCODER = (
    *ATTENTION,
    only("hidden_act", "gelu"),
    only("use_qk_norm", False),
    only("audio_channels", 1),
    only("use_causal_conv", True),
    only("pad_mode", "constant"),
    only("use_conv_shortcut", False),
    only("use_streaming", False),
    Rule("frame_rate", _HALF, _halves_the_rate),
    Rule("_frame_rate", _HALF, _halves_the_rate),  # how transformers writes it
)
