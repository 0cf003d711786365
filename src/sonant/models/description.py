"""What can be told of a checkpoint folder without loading it: for lists, and to check before a long load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sonant.models.spec import ModelSpec


@dataclass(frozen=True)
class Description:
    """From the folder's config files alone."""

    family: str
    kind: str  # the family's own word: custom_voice, base …
    size: str
    voices: tuple[str, ...]  # of its own
    languages: tuple[str, ...]
    clones: bool  # takes its voice from a reference clip
    designs: bool  # makes its voice up from a description in words
    sample_rate: int
    frame_rate: float  # frames a second
    most_speakers: int = 1  # in one text


@dataclass(frozen=True)
class Footprint:
    """From the headers of the weight files: what the model takes once it is loaded."""

    weight_bytes: int
    spec: ModelSpec
