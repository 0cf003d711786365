"""A GPU's context, made while torch is imported: the driver takes some tenths of a second for it, and needs no Python.

torch finds the context there later and takes it for its own. Without a driver, or with one that fails, nothing happens
here, and torch says what is wrong when it is asked for a device.
"""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path


def begin_context(device: str) -> threading.Thread | None:
    """None where no GPU will be used, as far as can be told without torch."""
    kind, _, number = device.partition(":")
    if kind not in ("auto", "cuda") or not (number or "0").isdecimal() or not has_gpu():
        return None
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # as torch would set it, but the driver reads it now
    thread = threading.Thread(target=_open, args=(int(number or 0),), name="sonant-context", daemon=True)
    thread.start()
    return thread


def has_gpu() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*"))


def _open(number: int, library: str = "libcuda.so.1") -> bool:
    """The context that all of a process share; it is never given back."""
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return False
    device, context = ctypes.c_int(), ctypes.c_void_p()
    return (
        driver.cuInit(0) == 0
        and driver.cuDeviceGet(ctypes.byref(device), number) == 0
        and driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    )
