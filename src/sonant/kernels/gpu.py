"""What kernels must know of the GPU that they run on: its name, for tuned tiles, what it can do, and who else uses it.

Tensors on a CUDA device are of that device. For tensors that are on none, it is the GPU that somebody plans for: the
steps of a model then take the same way through the same kernels as they will there (see `recorded_launches.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache

import torch


@dataclass(frozen=True)
class Gpu:
    name: str
    capability: tuple[int, int]

    @property
    def arch(self) -> int:
        """As compilers count: 90 for Hopper."""
        return 10 * self.capability[0] + self.capability[1]

    @property
    def shared_bytes(self) -> int:
        """That one program can have: less than half of Hopper's on GPUs that are not for data centers."""
        if self.capability in _LARGE_AMPERE:
            return 163 << 10
        return _HOPPERS_SHARED_BYTES if (9, 0) <= self.capability < (12, 0) else 99 << 10


_LARGE_AMPERE = ((8, 0), (8, 7))
_HOPPERS_SHARED_BYTES = 227 << 10
_PLANNED: ContextVar[Gpu | None] = ContextVar("planned_gpu", default=None)
_BESIDE: ContextVar[bool] = ContextVar("beside_steps", default=False)


def gpu_of(device: torch.device) -> Gpu | None:
    """None: tensors of this device meet no kernel of ours."""
    return _of_cuda(device) if device.type == "cuda" else _PLANNED.get()


def shared_room(device: torch.device) -> int:
    """Bytes of shared memory that one program can have. Without a GPU to ask for it is Hopper's."""
    gpu = gpu_of(device)
    return _HOPPERS_SHARED_BYTES if gpu is None else gpu.shared_bytes


def stages_within(device: torch.device, wanted: int, stage_bytes: int) -> int:
    """Of a kernel's stages, each with so much shared memory: as many as wanted, or as there is room for."""
    return max(1, min(wanted, shared_room(device) // stage_bytes))


@contextmanager
def planning_for(gpu: Gpu) -> Iterator[None]:
    before = _PLANNED.set(gpu)
    try:
        yield
    finally:
        _PLANNED.reset(before)


@contextmanager
def beside_steps() -> Iterator[None]:
    """For launches of other threads than an engine's step thread: what kernels keep with a weight is the steps' alone,
    who may use the same weight at the same time."""
    before = _BESIDE.set(True)
    try:
        yield
    finally:
        _BESIDE.reset(before)


def is_beside_steps() -> bool:
    return _BESIDE.get()


@lru_cache(maxsize=16)
def _of_cuda(device: torch.device) -> Gpu:
    return Gpu(torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device))
