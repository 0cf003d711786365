"""Compiles a few kernels in two processes, then launches them as if on a Hopper GPU: run by test_compile_ahead.py.

The launches are Triton's own up to the point where a device would be needed, so what they find on disk a GPU's launches
would find too. Launchers that a C compiler would still have to build are counted.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any
from unittest import mock

import torch
from no_driver import GPU, NoDriver
from triton import knobs
from triton.backends.nvidia.driver import CudaLauncher
from triton.runtime import build as triton_build
from triton.runtime import driver
from triton.runtime.cache import get_cache_manager
from triton.runtime.jit import JITFunction

from sonant.engine.compile_process import Compiling
from sonant.engine.rehearsal import Rehearsal
from sonant.kernels.gpu import planning_for
from sonant.kernels.triton import norm, swiglu


def steps(device: str) -> list[Any]:
    x = torch.zeros(2, 1, 256, dtype=torch.bfloat16, device=device)
    return [
        lambda: norm.rms_norm(x, x[0, 0], 1e-6),
        lambda: (norm.rms_norm(x.float(), x[0, 0].float(), 1e-6), swiglu.swiglu(x)),
    ]


def launched() -> tuple[list[str], int, int]:
    """The folders that Triton looked in, how many had no kernel yet, and how many launchers had to be built."""
    folders, misses, built = list[str](), list[str](), list[str]()

    def looked(*, metadata: dict[str, Any], cache_hit: bool, **_: Any) -> None:
        manager: Any = get_cache_manager(metadata["hash"])
        folders.append(str(manager.cache_dir))
        if not cache_hit:
            misses.append(metadata["name"])

    run = JITFunction.run

    def launch(kernel: JITFunction[Any], *args: Any, warmup: bool, **options: Any) -> None:
        compiled: Any = run(kernel, *args, warmup=True, **options)
        with suppress(ValueError, AssertionError):  # AssertionError: without a driver there is nothing to link
            CudaLauncher(compiled.src, compiled.metadata)

    def build(name: str, *_: Any) -> str:
        built.append(name)
        raise ValueError("nobody should have to build it")

    driver.set_active(NoDriver())
    knobs.compilation.listener = looked
    patched = mock.patch.object(JITFunction, "run", launch), mock.patch.object(triton_build, "_build", build)
    with patched[0], patched[1], planning_for(GPU):
        for step in steps("cpu"):
            step()
    return folders, len(misses), len(built)


def main() -> None:
    compiling = Compiling(Rehearsal(GPU, lambda: steps("meta")), workers=2)
    compiling.finish()
    found, misses, built = launched()
    report = {
        "ready": compiling.ready,
        "found": compiling.found,
        "failures": compiling.failures,
        "folders": compiling.folders,
        "launched": found,
        "misses": misses,
        "launchers": built,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
