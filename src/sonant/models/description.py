"""What is known of a checkpoint folder without loading it: for lists, and for checks before a long load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sonant.models.spec import ModelSpec


@dataclass(frozen=True)
class Description:
    """What the folder's config files say."""

    family: str
    kind: str  # the family's own word: custom_voice, base …
    size: str
    voices: tuple[str, ...]  # the checkpoint's own
    languages: tuple[str, ...]
    clones: bool  # takes its voice from a reference clip
    designs: bool  # makes up a voice from a description in words
    sample_rate: int
    frame_rate: float  # frames a second
    most_speakers: int = 1  # in one text


@dataclass(frozen=True)
class Footprint:
    """What the model takes once it is loaded, by the headers of its weight files."""

    weight_bytes: int
    spec: ModelSpec
