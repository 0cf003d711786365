"""What Triton does once before its first kernel runs, done sooner: beside something else, or in another process.

- It hashes itself, 400 MB of it, since a compiled kernel is named by that, and asks ptxas for its version.
- It has a C compiler build its own access to the driver.
- For each signature of a kernel it has a C compiler build a launcher, when such a kernel is first launched: some
  tenths of a second each, for which a captured graph would wait one after the other.
- It reads the source of every kernel, and of all that a kernel calls, for its name in the cache.

Nothing depends on it: what is missing is made when it is met.
"""

from __future__ import annotations

import importlib
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from subprocess import SubprocessError
from typing import Any

import triton.runtime
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.cache import triton_key
from triton.runtime.jit import JITFunction

from sonant.kernels.dispatch import IN_CUDA, OPS, choose
from sonant.kernels.gpu import Gpu

_LOG = logging.getLogger(__name__)
_OURS = "sonant.kernels.triton."
_WARP = 32
_CANNOT = (AssertionError, ImportError, OSError, RuntimeError, SubprocessError)  # what it raises without a driver, say


def target_of(gpu: Gpu) -> GPUTarget:
    return GPUTarget("cuda", gpu.arch, _WARP)


def begin_hash() -> threading.Thread:
    """Of Triton itself, with Python's lock given away for nearly all of it. Whoever needs it while it is still made
    would make it again."""
    thread = threading.Thread(target=_hash, name="sonant-triton", daemon=True)
    thread.start()
    return thread


def _hash() -> None:
    with suppress(OSError):
        triton_key()


def ask_ptxas(gpu: Gpu) -> None:
    make_backend(target_of(gpu)).hash()


def import_kernels() -> None:
    """The modules of all kernels, and each kernel's name."""
    for op in OPS:
        choose(op, "cuda")
    for file in IN_CUDA.values():
        importlib.import_module(f"sonant.kernels.cuda.{file}")
    for kernel in _kernels():
        hash(kernel)


def set_up(gpu: Gpu) -> None:
    """All that an engine needs; what cannot be done is tried again by who needs it, who is told why not."""
    hashing = begin_hash()
    with suppress(*_CANNOT):
        ask_ptxas(gpu)
        _ = triton.runtime.driver.active.utils
        import_kernels()
    hashing.join()


def build_launcher(compiled: Any) -> None:
    """Into Triton's cache on disk, where a launch finds it."""
    driver = importlib.import_module("triton.backends.nvidia.driver")
    try:
        driver.CudaLauncher(compiled.src, compiled.metadata)
    except _CANNOT as error:
        _tell(f"launchers are built as they are met: {error}")


@cache
def _tell(what: str) -> None:
    """Once a process."""
    _LOG.info(what)


def _kernels() -> Iterator[JITFunction[Any]]:
    for name, module in list(sys.modules.items()):
        if name.startswith(_OURS):
            yield from (part for part in vars(module).values() if isinstance(part, JITFunction))
