"""Reads a stage's TOML file into frozen dataclasses; an unknown or missing key is an error that names it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

T = TypeVar("T")

CONFIGS = Path(__file__).parent / "configs"


class SettingsError(ValueError):
    pass


def read(path: Path, into: type[T]) -> T:
    with path.open("rb") as f:
        return build(into, tomllib.load(f), path.name)


def build(into: type[T], raw: Mapping[str, Any], where: str) -> T:
    if not is_dataclass(into):
        raise TypeError(f"{into} is no dataclass")
    known = {f.name: f for f in fields(into)}
    types = get_type_hints(into)
    unknown = sorted(set(raw) - set(known))
    required = {n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING}
    missing = sorted(required - set(raw))
    if unknown or missing:
        raise SettingsError(f"{where}: unknown keys {unknown}, missing keys {missing}")
    values: dict[str, Any] = {}
    for name, value in raw.items():
        if is_dataclass(types[name]) and isinstance(value, Mapping):
            value = build(types[name], value, f"{where} [{name}]")
        values[name] = tuple(value) if isinstance(value, list) else value
    return into(**values)
