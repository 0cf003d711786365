"""Replaces launches of kernels for Hopper GPUs by runs of their source on a CPU: see hopper_on_cpu.h."""

from __future__ import annotations

import ctypes
import itertools
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from sonant.kernels.cuda import conv, prefill_wgmma
from sonant.kernels.cuda.compiler import SOURCES
from sonant.kernels.cuda.kernel import CudaKernel

HERE = Path(__file__).parent
_ALIGNMENT = 64  # of arguments, since tensor maps among them need it


class HopperOnCpu:
    """Compiles each program once, into its folder. Every launch draws another order of the events that have none."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._seeds, self._built = folder, itertools.count(), dict[str, Any]()

    def take_over(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(CudaKernel, "launch", lambda *given: self._launch(*given))
        for module in (conv, prefill_wgmma):
            monkeypatch.setattr(module, "tensor_map", _tensor_map)

    def _launch(self, kernel: CudaKernel, device: torch.device, grid: Sequence[int], *values: float | bytes) -> None:
        packed = kernel.arguments.pack(*values)
        held = ctypes.create_string_buffer(len(packed) + _ALIGNMENT)
        start = -(-ctypes.addressof(held) // _ALIGNMENT) * _ALIGNMENT
        ctypes.memmove(start, packed, len(packed))
        sizes = (ctypes.c_int * 3)(*grid), kernel.threads, kernel.shared_bytes
        self._run_of(kernel)(ctypes.c_void_p(start), *sizes, next(self._seeds))

    def _run_of(self, kernel: CudaKernel) -> Any:
        program = kernel.program
        defines = [f"-D{name}={value}" for name, value in sorted(program.defines.items())]
        defines += [f'-DSOURCE="{program.source}"', f"-DKERNEL={kernel.entry}"]
        if (key := " ".join(defines)) not in self._built:
            made = self._folder / f"{len(self._built)}.so"
            subprocess.run(
                ["g++", "-O2", "-w", "-Wno-psabi", "-shared", "-fPIC", "-std=c++17", "-DSONANT_ON_CPU", *defines,
                 f"-I{SOURCES}", f"-I{HERE}", "-o", str(made), str(HERE / "hopper_on_cpu.cpp")],
                check=True,
            )  # fmt: skip
            self._built[key] = ctypes.CDLL(str(made)).run
        return self._built[key]


def _tensor_map(
    address: int, shape: tuple[int, int, int], row_stride: int, part_lines: int, part_columns: int
) -> bytes:
    """A tensor map in the form that hopper_on_cpu.h reads."""
    assert address % 16 == 0 and row_stride % 8 == 0 and shape[2] % 8 == 0 and part_columns in (32, 64)
    assert 0 < part_lines <= 256
    return struct.pack("<7Q", address, *shape, row_stride, part_lines, part_columns).ljust(128, b"\0")
