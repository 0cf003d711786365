"""Weights that are not on the device: rows looked up in host memory, and clocks of the waits for other weights.

These are no ops of a model: they run only where weights are paged, and have nothing to tune or to measure. A clock is
[3] int64: when it began, nanoseconds in all, and an amount in all, in the device's own time.
"""

from __future__ import annotations

import importlib.util
import time
from functools import lru_cache
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from sonant.kernels.gpu import gpu_of


def host_rows(table: Tensor, ids: Tensor) -> Tensor:
    """Rows [..., D] of a table [V, D] in pinned host memory, for ids [...] on the device; no copy is awaited."""
    return F.embedding(ids, table) if gpu_of(ids.device) is None else _kernels().host_rows(table, ids)


def pass_begins(clock: Tensor) -> None:
    _begin(clock) if gpu_of(clock.device) is None else _kernels().pass_begins(clock)


def pass_ends(clock: Tensor, amount: int) -> None:
    _end(clock, amount) if gpu_of(clock.device) is None else _kernels().pass_ends(clock, amount)


def wait_begins(clock: Tensor) -> None:
    _begin(clock) if gpu_of(clock.device) is None else _kernels().wait_begins(clock)


def wait_ends(clock: Tensor) -> None:
    _end(clock, 0) if gpu_of(clock.device) is None else _kernels().wait_ends(clock)


def can_page(device: torch.device) -> bool:
    """Whether there are kernels to page weights on this device."""
    return device.type != "cuda" or importlib.util.find_spec("triton") is not None


def _begin(clock: Tensor) -> None:
    clock[0] = time.perf_counter_ns()


def _end(clock: Tensor, amount: int) -> None:
    clock[1] += time.perf_counter_ns() - clock[0]
    clock[2] += amount


@lru_cache(maxsize=1)
def _kernels() -> ModuleType:
    return importlib.import_module("sonant.kernels.triton.host_weights")
