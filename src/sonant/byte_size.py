"""Sizes of memory as people write them."""

from __future__ import annotations

import re

from sonant.errors import ConfigError

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_SIZE = re.compile(r"\s*(\d{1,18}(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def parse_size(text: str, where: str) -> int:
    """Parse `3GiB`, `1.5 GB`, `800MiB` or plain bytes."""
    match = _SIZE.fullmatch(text)
    if match is None or match[2].lower() not in _UNITS:
        raise ConfigError(f"{where} must be a size as 3GiB, 800MiB or 1.5GB are, not {text!r}")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def rounded_up(count: int) -> str:
    """At least `count` bytes, in a form that `parse_size` reads."""
    return f"{-(-count >> 20)}MiB" if count >= 1 << 20 else f"{-(-count >> 10)}KiB"


def shown(count: int) -> str:
    """`count` bytes, for a person to read."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if count >= scale:
            return f"{count / scale:.2f} {unit}"
    return f"{count / 1024:.1f} KiB"
