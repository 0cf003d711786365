"""Reads the JSON files of a published folder, strictly where they matter to us."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from sonant import strict
from sonant.errors import CheckpointError
from sonant.models.qwen3_tts import supported


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing: a Qwen3-TTS checkpoint folder holds it") from None
    except (ValueError, OSError, RecursionError) as e:
        raise CheckpointError(f"{path} cannot be read as JSON: {e}") from e
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} should hold a JSON object")
    return value


class Published:
    """A part of a published file: what it needs is there, and nothing in it asks for what we do not do."""

    rules: ClassVar[Sequence[supported.Rule]] = ()

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], where: str) -> Self:
        named = supported.with_rope_theta(raw, where)
        built = strict.build(cls, named, where, error=CheckpointError, lenient=True)
        supported.check(raw, cls.rules, where)
        return built
