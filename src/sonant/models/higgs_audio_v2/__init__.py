"""Higgs Audio V2: a Llama with a second feed-forward network for sound, eight delayed codebooks, 25 frames a second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TITLE = "Higgs Audio V2"


def matches(config: Mapping[str, Any]) -> bool:
    """Whether a folder's config.json is of this family, as transformers writes it or as Boson first published it."""
    return config.get("model_type") in ("higgs_audio_v2", "higgs_audio")
