"""Keys of the published configs that change the arithmetic and that our modules do not read.

Each must have the value that the modules are built for, or the folder is refused by name: a key that was passed over
in silence would come out as a voice that is slightly wrong. An absent key, or null, stands for the official default,
which is the supported value in every rule here.

Left out because they change nothing that is computed here: dropouts, initialisers, cache switches, mRoPE's sections
(the three axes are always equal), and what only Mimi's decoder reads, such as `trim_right_ratio` and `upsample_groups`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sonant.errors import CheckpointError

Raw = Mapping[str, Any]
_HARMLESS_IN_ROPE = ("mrope_section", "interleaved", "mrope_interleaved", "rope_theta")


@dataclass(frozen=True)
class Rule:
    key: str
    supports: str
    fits: Callable[[Any, Raw], bool]  # the value, and the object that it stands in


def check(raw: Raw, rules: Sequence[Rule], where: str) -> None:
    """`raw` has been read already: the keys that our modules use are there and of their types."""
    for rule in rules:
        value = raw.get(rule.key)
        if value is not None and not rule.fits(value, raw):
            raise CheckpointError(f"{where}: {rule.key} is {value!r}; Sonant supports only {rule.supports}")


def agree(where: str, *pairs: tuple[str, object, str, object]) -> None:
    """(name, value, name, value) of what must be equal, though it stands in two places."""
    for one, value, other, its_value in pairs:
        if value != its_value:
            raise CheckpointError(f"{where}: {one} is {value!r}, but {other} is {its_value!r}; they must be equal")


def with_rope_theta(raw: Raw, where: str) -> Raw:
    """`rope_parameters` is how newer files spell `rope_theta` and `rope_scaling` together."""
    newer = raw.get("rope_parameters")
    if not isinstance(newer, Mapping) or newer.get("rope_theta") is None:
        return raw
    if raw.get("rope_theta") is not None:
        agree(where, ("rope_theta", raw["rope_theta"], "rope_parameters.rope_theta", newer["rope_theta"]))
    return {**raw, "rope_theta": newer["rope_theta"]}


def _only(key: str, value: object) -> Rule:
    return Rule(key, repr(value), lambda given, _: bool(given == value))


def _all_layers(kind: str) -> Rule:
    def fits(given: Any, _: Raw) -> bool:
        return isinstance(given, list) and all(layer == kind for layer in given)

    return Rule("layer_types", f"{kind!r} for every layer", fits)


def _no_window(given: Any, raw: Raw) -> bool:
    """`sliding_window` alone means nothing: the official classes drop it unless this switch is on."""
    return not given or ("sliding_window" in raw and raw["sliding_window"] is None)


def _plain_rope(given: Any, _: Raw) -> bool:
    if not isinstance(given, Mapping):
        return False
    kinds = [given.get(key) for key in ("rope_type", "type")]
    rest = {k: v for k, v in given.items() if k not in ("rope_type", "type", *_HARMLESS_IN_ROPE)}
    whole = rest.pop("partial_rotary_factor", None) in (None, 1)
    return all(kind in (None, "default") for kind in kinds) and whole and not any(v is not None for v in rest.values())


def _multiple_of_kv_heads(given: Any, raw: Raw) -> bool:
    return raw["num_key_value_heads"] > 0 and given % raw["num_key_value_heads"] == 0


def _halves_the_rate(given: Any, raw: Raw) -> bool:
    """Mimi's last convolution is built for the ratio of two frame rates; ours for the published one."""
    rate, hop = raw.get("sampling_rate") or 24000, math.prod(raw["upsampling_ratios"])
    if not isinstance(given, int | float) or not isinstance(rate, int | float) or given <= 0 or hop <= 0:
        return False
    return math.ceil(rate / hop) / given == 2


_ROPE = "rope_type 'default' without scaling"
_HALF = "half of what upsampling_ratios leave of sampling_rate"
ATTENTION = (
    _only("attention_bias", False),
    _only("mlp_bias", False),
    _only("partial_rotary_factor", 1.0),
    Rule("rope_scaling", _ROPE, _plain_rope),
    Rule("rope_parameters", _ROPE, _plain_rope),
    Rule("head_dim", "an even number", lambda given, _: given % 2 == 0),
    Rule("num_attention_heads", "a multiple of num_key_value_heads", _multiple_of_kv_heads),
)
LANGUAGE_MODEL = (
    *ATTENTION,
    _only("hidden_act", "silu"),
    _only("use_qk_norm", True),
    _only("tie_word_embeddings", False),
    Rule("use_sliding_window", "False", _no_window),
    _all_layers("full_attention"),
)
CODEC_DECODER = (
    *ATTENTION,
    _only("hidden_act", "silu"),
    _only("use_qk_norm", False),
    _only("num_semantic_quantizers", 1),  # the official decoder has one whatever the file says
    _all_layers("sliding_attention"),
)
CODEC_ENCODER = (
    *ATTENTION,
    _only("hidden_act", "gelu"),
    _only("use_qk_norm", False),
    _only("audio_channels", 1),
    _only("use_causal_conv", True),
    _only("pad_mode", "constant"),
    _only("use_conv_shortcut", False),
    _only("use_streaming", False),
    Rule("frame_rate", _HALF, _halves_the_rate),
    Rule("_frame_rate", _HALF, _halves_the_rate),  # how transformers writes it
)
