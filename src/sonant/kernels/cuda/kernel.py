"""A kernel of ours as its wrappers see it: what it is made of, whether it can run here, and its launch."""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import torch

from sonant.kernels.cuda import driver
from sonant.kernels.cuda.compiler import BuildError, Program, build
from sonant.kernels.gpu import Gpu, gpu_of

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class CudaForm:
    """Like a Triton kernel's form (recorded_launches.py): it can be sent to another process, and compiled there."""

    module: str
    name: str
    key: str
    program: Program

    def compile(self, gpu: Gpu) -> str:
        return str(build(self.program, gpu.arch).parent)

    @property
    def is_slow(self) -> bool:
        """nvcc takes one to six seconds."""
        return True


@dataclass(frozen=True)
class CudaKernel:
    program: Program
    entry: str
    arguments: struct.Struct = field(hash=False, compare=False)
    shared_bytes: int
    threads: int = 128
    cluster: int = 0  # blocks of a cluster; 0: there are no clusters
    resident: int = 0  # blocks that must all run at once
    waits: bool = False  # blocks wait for those before them in the grid, which begin no later

    @property
    def form(self) -> CudaForm:
        """One for all entries of a program, which are compiled together."""
        return CudaForm(__name__, self.program.source, repr(sorted(self.program.defines.items())), self.program)

    def is_ready(self, device: torch.device) -> bool:
        """Whether a launch will work. The first call may compile; a failure is logged once, and is final."""
        return device.type != "cuda" or _function(self, _index(device)) is not None

    def launch(self, device: torch.device, grid: Sequence[int], *values: float | bytes) -> None:
        function = _function(self, _index(device))
        assert function is not None, f"{self.entry} is launched where it is not ready"
        function.launch(grid, self.arguments.pack(*values))


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


@cache
def _function(kernel: CudaKernel, index: int) -> driver.Function | None:
    gpu = gpu_of(torch.device("cuda", index))
    assert gpu is not None
    try:
        cubin = build(kernel.program, gpu.arch)
        size = driver.BlockSize(kernel.threads, kernel.shared_bytes, kernel.cluster, kernel.resident)
        return driver.load(cubin, kernel.entry, index, size)
    except BuildError as error:
        _LOG.warning("%s runs in Triton, since our own kernel cannot: %s", kernel.entry, error)
        return None
