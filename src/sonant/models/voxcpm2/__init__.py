"""VoxCPM2: two language models, a flow decoder that draws patches of latents, and 48 kHz."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TITLE = "VoxCPM2"


def matches(config: Mapping[str, Any]) -> bool:
    return config.get("architecture") in ("voxcpm2", "voxcpm")
