"""Programmatic dependent launch (PDL): a kernel may start before the previous one ends, and wait for its results later.

On Hopper this hides most of a small kernel's launch. A kernel that uses it lets its successor start at once
(`launch_dependents`), reads what no kernel writes (weights), and waits before it touches anything else (`wait_prior`).
A kernel launched so must always wait, or its successor could overtake its predecessor.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from sonant.kernels.gpu import gpu_of

_HOPPER = (9, 0)


@triton.jit
def launch_dependents(PDL: tl.constexpr):
    if PDL:
        gdc_launch_dependents()


@triton.jit
def wait_prior(PDL: tl.constexpr):
    if PDL:
        gdc_wait()


def supported(device: torch.device) -> bool:
    gpu = gpu_of(device)
    return gpu is not None and gpu.capability >= _HOPPER


def launch_options(on: Tensor) -> dict[str, bool]:
    """Launch arguments of a kernel with a `PDL` constant: on if the device supports it."""
    return {"PDL": True, "launch_pdl": True} if supported(on.device) else {"PDL": False}
