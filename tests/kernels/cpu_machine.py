"""Runs our CUDA kernels on this machine's CPU: their source, compiled with `cuda_on_cpu.h` in place of a GPU."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from sonant.kernels.cuda.compiler import SOURCES, Program
from sonant.kernels.cuda.kernel import CudaKernel

HERE = Path(__file__).parent


class OnCpu:
    """Compiles a kernel for this machine when it is first launched."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seed = folder, 0
        self.built = cache(self._build)

    def take_over(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(CudaKernel, "launch", lambda *given: self.launch(*given))

    def _build(self, program: Program, entry: str) -> Any:
        made = self.folder / f"{entry}-{'-'.join(map(str, program.defines.values()))}.so"
        defines = [f"-D{name}={value}" for name, value in program.defines.items()]
        subprocess.run(
            ["g++", "-O2", "-w", "-shared", "-fPIC", "-std=c++17", "-DSONANT_ON_CPU", *defines,
             f'-DSOURCE="{program.source}"', f"-DKERNEL={entry}", f"-I{SOURCES}", f"-I{HERE}",
             "-o", str(made), str(HERE / "cuda_on_cpu.cpp")],
            check=True,
        )  # fmt: skip
        return ctypes.CDLL(str(made)).run

    def launch(self, kernel: CudaKernel, device: torch.device, grid: Sequence[int], *values: float) -> None:
        self.seed += 1
        packed = kernel.arguments.pack(*values)
        grid_of = (ctypes.c_int * 3)(*grid)
        run = self.built(kernel.program, kernel.entry)
        run(packed, grid_of, kernel.threads, kernel.cluster, kernel.waits, kernel.shared_bytes, self.seed)
