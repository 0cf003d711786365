"""A run on disk: everything that is needed to draw, compare or question it later."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sonant.bench.client.load import Load
from sonant.bench.client.load_level import ClientError, LoadLevel
from sonant.bench.client.sample import Sample
from sonant.errors import ConfigError

FORMAT = 1


@dataclass(frozen=True)
class Run:
    target: Mapping[str, Any]
    client: Mapping[str, Any]  # the machine the load came from, its versions and processes
    levels: list[LoadLevel]
    notes: Mapping[str, str]  # the user's notes on the server
    warmups: int
    made_at: str

    @classmethod
    def now(cls, target: Mapping[str, Any], client: Mapping[str, Any], notes: Mapping[str, str], warmups: int) -> Run:
        return cls(target, client, [], notes, warmups, datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def interrupted(self) -> bool:
        return any(level.interrupted for level in self.levels)

    def save(self, path: Path) -> None:
        write_json(path, self.to_json())

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "kind": "serve",
            "made_at": self.made_at,
            "target": dict(self.target),
            "client": dict(self.client),
            "notes": dict(self.notes),
            "warmups": self.warmups,
            "interrupted": self.interrupted,
            "levels": [_level_to_json(level) for level in self.levels],
        }


def _level_to_json(level: LoadLevel) -> dict[str, Any]:
    return {
        "load": asdict(level.load),
        "wall_s": level.wall_s,
        "interrupted": level.interrupted,
        "client_error": asdict(level.client) | {"limited": level.client.limited} if level.client else None,
        "summary": asdict(level.summary),
        "engine": level.server_metrics,
        "samples": [sample.to_json(level.origin_s) for sample in level.samples],
    }


def check_places(*paths: Path | None) -> None:
    """Call it before a measurement, which would be lost if its results could not be written in the end."""
    for path in (path for path in paths if path is not None):
        if (why := _why_not(path)) is not None:
            raise ConfigError(f"the results cannot be written to {path}: {why}")


def _why_not(path: Path) -> str | None:
    try:
        there = next(p for p in (path, *path.absolute().parents) if p.exists())
    except OSError as e:  # a folder that we may not read
        return e.strerror
    if path.is_dir():
        return "it is a folder"
    if there != path and not there.is_dir():
        return f"{there} is no folder"
    return None if os.access(there, os.W_OK) else "permission denied"


def write_json(path: Path, data: Mapping[str, Any], *, indent: int | None = None) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Half a character, as an argument that is not UTF-8 has, is written in JSON's own way: as an escape.
        text = json.dumps(data, ensure_ascii=False, indent=indent)
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as e:
        raise ConfigError(f"the results cannot be written to {path}: {e.strerror}") from e


def read_json(path: Path, kind: str) -> dict[str, Any]:
    """Read a results file of ours; raise `ConfigError` if it is not of this kind."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise ConfigError(f"{path} cannot be read as results of a run: {e}") from e
    if not isinstance(data, dict) or data.get("kind") != kind or data.get("format") != FORMAT:
        raise ConfigError(f"{path} holds no results of `sonant bench {kind}` in format {FORMAT}")
    return data


def load(path: Path) -> Run:
    data = read_json(path, "serve")
    try:
        levels = [_level_from_json(row) for row in data["levels"]]
        return Run(data["target"], data["client"], levels, data["notes"], data["warmups"], data["made_at"])
    except (KeyError, TypeError, ValueError) as e:
        raise ConfigError(f"{path} is damaged: {type(e).__name__} {e}") from e


def _level_from_json(row: Mapping[str, Any]) -> LoadLevel:
    error = row["client_error"]
    client = ClientError(**{k: v for k, v in error.items() if k != "limited"}) if error else None
    samples = [Sample.from_json(s) for s in row["samples"]]
    return LoadLevel(Load(**row["load"]), row["wall_s"], samples, client, row["engine"], row["interrupted"])
