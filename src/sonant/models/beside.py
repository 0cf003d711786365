"""A part of a checkpoint that its publisher keeps in another repository."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Beside:
    repository: str
    files: tuple[str, ...]  # patterns
    into: str  # the subfolder of the checkpoint where the family looks for it
