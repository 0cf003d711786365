"""Reads the JSON files of a published folder, strictly where they matter to us.

Keys that change the arithmetic in a way that a family's modules do not support are refused by name: if one were
silently ignored, the voice would be slightly wrong. An absent key, or null, stands for the official default, which is
the supported value in every rule.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from sonant import strict
from sonant.errors import CheckpointError

Raw = Mapping[str, Any]
MOST = 2**24  # of a size or an id; the product of two still fits into what torch counts memory in


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing: the published folder holds it") from None
    except (ValueError, OSError, RecursionError) as e:
        raise CheckpointError(f"{path} cannot be read as JSON: {e}") from e
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} should hold a JSON object")
    return value


@dataclass(frozen=True)
class Rule:
    key: str
    supports: str
    fits: Callable[[Any, Raw], bool]  # takes the value, and the object that contains it


def only(key: str, value: object) -> Rule:
    return Rule(key, repr(value), lambda given, _: bool(given == value))


def at_least_one(key: str) -> Rule:
    return Rule(key, "a number from 1 on", lambda given, _: bool(given >= 1))


def _whole_groups(given: Any, raw: Raw) -> bool:
    return raw["num_key_value_heads"] > 0 and given % raw["num_key_value_heads"] == 0


WHOLE_GROUPS = Rule("num_attention_heads", "a multiple of num_key_value_heads", _whole_groups)


def check(raw: Raw, rules: Sequence[Rule], where: str) -> None:
    """Raise if a rule is broken. `raw` must have been read, so that the keys our modules use are there and valid."""
    for rule in rules:
        value = raw.get(rule.key)
        if value is not None and not rule.fits(value, raw):
            raise CheckpointError(f"{where}: {rule.key} is {value!r}; Sonant supports only {rule.supports}")


def agree(where: str, *pairs: tuple[str, object, str, object]) -> None:
    """Raise unless the values of each pair (name, value, name, value) are equal: one setting that stands twice."""
    for one, value, other, its_value in pairs:
        if value != its_value:
            raise CheckpointError(f"{where}: {one} is {value!r}, but {other} is {its_value!r}; they must be equal")


def with_rope_theta(raw: Raw, where: str) -> Raw:
    """`raw` with the `rope_theta` of its `rope_parameters`, in which newer files combine it with `rope_scaling`."""
    newer = raw.get("rope_parameters")
    if not isinstance(newer, Mapping) or newer.get("rope_theta") is None:
        return raw
    if raw.get("rope_theta") is not None:
        agree(where, ("rope_theta", raw["rope_theta"], "rope_parameters.rope_theta", newer["rope_theta"]))
    return {**raw, "rope_theta": newer["rope_theta"]}


class Published:
    """A part of a published file, checked: it has all that we need, and asks for nothing that we do not support."""

    rules: ClassVar[Sequence[Rule]] = ()

    @classmethod
    def from_dict(cls, raw: Raw, where: str) -> Self:
        named = with_rope_theta(raw, where) if isinstance(raw, Mapping) else raw
        built = strict.build(cls, named, where, error=CheckpointError, lenient=True)
        for name, value in vars(built).items():
            for number in value if isinstance(value, tuple) else (value,):
                if isinstance(number, int) and not 0 <= number <= MOST:
                    raise CheckpointError(f"{where}: {name} is {value!r}; a size or an id is from 0 to {MOST}")
        check(raw, cls.rules, where)
        return built
