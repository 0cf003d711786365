"""Qwen3-TTS 12 Hz: a talker over time, a predictor over codebooks, a causal codec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TITLE = "Qwen3-TTS"


def matches(config: Mapping[str, Any]) -> bool:
    """Whether a folder's config.json is of this family."""
    return config.get("model_type") == "qwen3_tts"
