"""Our kernels of warpgroups on this machine's CPU: their source, compiled with `hopper_on_cpu.h` in place of a GPU."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from sonant.kernels.cuda.compiler import SOURCES
from sonant.kernels.cuda.kernel import CudaKernel

HERE = Path(__file__).parent


class HopperOnCpu:
    """Compiles a kernel for this machine when it is first launched."""

    def __init__(self, folder: Path, structure: str) -> None:
        self.folder, self.structure, self.seed = folder, structure, 0
        self.built = cache(self._build)

    def _build(self, kernel: CudaKernel) -> Any:
        made = self.folder / f"{kernel.entry}-{'-'.join(map(str, kernel.program.defines.values()))}.so"
        defines = [f"-D{name}={value}" for name, value in kernel.program.defines.items()]
        subprocess.run(
            ["g++", "-O2", "-w", "-shared", "-fPIC", "-std=c++17", "-DSONANT_ON_CPU", *defines,
             f'-DSOURCE="{kernel.program.source}"', f"-DKERNEL={kernel.entry}", f"-DARGS={self.structure}",
             f"-I{SOURCES}", f"-I{HERE}", "-o", str(made), str(HERE / "hopper_on_cpu.cpp")],
            check=True,
        )  # fmt: skip
        return ctypes.CDLL(str(made)).run

    def launch(self, kernel: CudaKernel, device: torch.device, grid: Sequence[int], *values: float) -> None:
        self.seed += 1
        packed, grid_of = kernel.arguments.pack(*values), (ctypes.c_int * 3)(*grid)
        self.built(kernel)(packed, grid_of, kernel.threads, kernel.cluster or 1, kernel.shared_bytes, self.seed)
