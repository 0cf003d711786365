"""Reads a stage's TOML file into frozen dataclasses; an unknown, missing or mistyped key is an error that names it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from sonant import strict

T = TypeVar("T")

CONFIGS = Path(__file__).parent / "configs"


class SettingsError(ValueError):
    pass


def read(path: Path, into: type[T]) -> T:
    with path.open("rb") as f:
        return build(into, tomllib.load(f), path.name)


def build(into: type[T], raw: Mapping[str, Any], where: str) -> T:
    return strict.build(into, raw, where, error=SettingsError)
