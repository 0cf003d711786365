"""Does early what Triton does once before its first kernel runs: beside other work, or in another process.

- It hashes itself, all 400 MB, since a compiled kernel's name depends on that, and asks ptxas for its version.
- It has a C compiler build its own access to the driver.
- For each signature of a kernel it has a C compiler build a launcher when such a kernel is first launched: that takes
  some tenths of a second each, for which the capture of a graph would wait one after the other.
- It reads the source of every kernel, and of all that a kernel calls, for its name in the cache.

Nothing depends on it: what is missing is made when it is first needed.
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
_CANNOT = (AssertionError, ImportError, OSError, RuntimeError, SubprocessError)  # raised without a driver, for example


def target_of(gpu: Gpu) -> GPUTarget:
    return GPUTarget("cuda", gpu.arch, _WARP)


def begin_hash() -> threading.Thread:
    """Hash Triton itself, nearly all of it without the GIL. Join the thread before the hash is needed: until then it
    would be computed again."""
    thread = threading.Thread(target=_hash, name="sonant-triton", daemon=True)
    thread.start()
    return thread


def _hash() -> None:
    with suppress(OSError):
        triton_key()


def ask_ptxas(gpu: Gpu) -> None:
    make_backend(target_of(gpu)).hash()


def import_kernels() -> None:
    """Import the modules of all kernels, and hash each kernel's source."""
    for op in OPS:
        choose(op, "cuda")
    for file in IN_CUDA.values():
        importlib.import_module(f"sonant.kernels.cuda.{file}")
    for kernel in _kernels():
        hash(kernel)


def set_up(gpu: Gpu) -> None:
    """Do all that an engine needs. What fails here is tried again where it is needed, and the error raised there."""
    hashing = begin_hash()
    with suppress(*_CANNOT):
        ask_ptxas(gpu)
        _ = triton.runtime.driver.active.utils
        import_kernels()
    hashing.join()


def build_launcher(compiled: Any) -> None:
    """Build it into Triton's cache on disk, where a launch finds it."""
    driver = importlib.import_module("triton.backends.nvidia.driver")
    try:
        driver.CudaLauncher(compiled.src, compiled.metadata)
    except _CANNOT as error:
        _tell(f"launchers are built as they are met: {error}")


@cache
def _tell(what: str) -> None:
    """Log it once in this process."""
    _LOG.info(what)


def _kernels() -> Iterator[JITFunction[Any]]:
    for name, module in list(sys.modules.items()):
        if name.startswith(_OURS):
            yield from (part for part in vars(module).values() if isinstance(part, JITFunction))
