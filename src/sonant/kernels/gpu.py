"""What kernels must know of the GPU that they run on: its name, for tuned tiles, its capability, and its other users.

For tensors on a CUDA device that is this device. For others it is the GPU that is planned for, if any: a model's steps
then take the same path through the same kernels as they will on that GPU (see `recorded_launches.py`).
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
        """The architecture's number for compilers: 90 for Hopper."""
        return 10 * self.capability[0] + self.capability[1]

    @property
    def shared_bytes(self) -> int:
        """Shared memory that one program can have: less than half of Hopper's on GPUs that are not for data centers."""
        if self.capability in _LARGE_AMPERE:
            return 163 << 10
        return _HOPPERS_SHARED_BYTES if (9, 0) <= self.capability < (12, 0) else 99 << 10


_LARGE_AMPERE = ((8, 0), (8, 7))
_HOPPERS_SHARED_BYTES = 227 << 10
_PLANNED: ContextVar[Gpu | None] = ContextVar("planned_gpu", default=None)
_BESIDE: ContextVar[bool] = ContextVar("beside_steps", default=False)


def gpu_of(device: torch.device) -> Gpu | None:
    """None: tensors on this device are served by torch alone."""
    return _of_cuda(device) if device.type == "cuda" else _PLANNED.get()


def shared_room(device: torch.device) -> int:
    """Bytes of shared memory that one program can have; Hopper's if there is no GPU."""
    gpu = gpu_of(device)
    return _HOPPERS_SHARED_BYTES if gpu is None else gpu.shared_bytes


def stages_within(device: torch.device, wanted: int, stage_bytes: int) -> int:
    """How many stages a kernel can have, `stage_bytes` of shared memory each: `wanted`, or as many as have room."""
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
    """For launches from other threads than an engine's step thread: what kernels keep with a weight belongs to the
    steps, which may use the same weight at the same time."""
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
