"""Which implementation of an op runs on a device, and why. `sonant doctor` prints these choices.

Today every op has its reference only; a faster version registers here with the devices it supports.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sonant.kernels import reference

OPS = (
    "dense_attention",
    "paged_attention",
    "paged_write",
    "penalize",
    "rms_norm",
    "rotate",
    "sample",
    "snake_beta",
    "swiglu",
    "uniforms",
)


@dataclass(frozen=True)
class Choice:
    op: str
    implementation: str
    reason: str
    function: Callable[..., Any]


@lru_cache(maxsize=256)
def choose(op: str, device_type: str) -> Choice:
    reason = "the CPU path" if device_type == "cpu" else f"no faster version for {device_type} yet"
    return Choice(op, "reference", reason, getattr(reference, op))
