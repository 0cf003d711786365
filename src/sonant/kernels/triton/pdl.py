"""Programmatic dependent launch: a kernel may start while the one before it ends, and wait where it needs its results.

On Hopper this hides most of a small kernel's start. A kernel that uses it tells its successor at once that it may
start (`begin`), reads what no kernel writes (weights), and waits before it touches anything else (`wait`). A kernel
launched so must always wait, or its successor could overtake its predecessor.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_HOPPER = (9, 0)


@triton.jit
def begin(EARLY: tl.constexpr):
    if EARLY:
        gdc_launch_dependents()


@triton.jit
def wait(EARLY: tl.constexpr):
    if EARLY:
        gdc_wait()


@lru_cache(maxsize=16)
def _can(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _HOPPER


def options(on: Tensor) -> dict[str, bool]:
    """Launch arguments of a kernel with an `EARLY` constant: on where the device can do it."""
    return {"EARLY": True, "launch_pdl": True} if _can(on.device) else {"EARLY": False}
