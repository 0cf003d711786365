"""Weights that are not on the device: rows looked up where they lie, and a clock for how long others were waited for.

No ops of a model's own: they are met only where weights are paged, and have nothing to be tuned or measured.
"""

from __future__ import annotations

import importlib.util
import time

import torch.nn.functional as F
from torch import Tensor

from sonant.kernels.gpu import gpu_of


def host_rows(table: Tensor, ids: Tensor) -> Tensor:
    """Rows [..., D] of a table [V, D] in pinned host memory, for ids [...] on the device; nothing waits for them."""
    if gpu_of(ids.device) is None:
        return F.embedding(ids, table)
    from sonant.kernels.triton import host_weights

    return host_weights.host_rows(table, ids)


def stamp(clock: Tensor, *, end: bool, amount: int = 0) -> None:
    """clock [3] int64: when it began, nanoseconds in all, and an amount in all, by the clock of the device itself."""
    if gpu_of(clock.device) is not None:
        from sonant.kernels.triton import host_weights

        host_weights.stamp(clock, end=end, amount=amount)
    elif not clock.is_meta:
        now_ns = time.perf_counter_ns()
        if end:
            clock[1] += now_ns - clock[0]
            clock[2] += amount
        else:
            clock[0] = now_ns


def can_page(device_type: str) -> bool:
    """Whether the kernels for it are there."""
    return device_type != "cuda" or importlib.util.find_spec("triton") is not None
