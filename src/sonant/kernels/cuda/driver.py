"""Machine code onto a GPU and into torch's current stream, through the driver's own library.

Torch has made the context and owns the stream; all that is asked of the driver is to load a module and to launch.
A launch may be captured in a CUDA graph like any other. The first of a kernel loads it, which no capture may do, so
every captured step is run once before (engine/graphs.py does).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from sonant.kernels.cuda.compiler import BuildError

_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_CARVEOUT = 9  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, in percent
_STREAM_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT: this thread has not met the GPU yet


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_byte * 60))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


class DriverError(BuildError):
    """The driver refused, as it does machine code that is newer than it."""


class Function:
    """One kernel on one GPU."""

    def __init__(self, handle: int, device: int, threads: int, shared_bytes: int) -> None:
        self._handle, self._device = ctypes.c_void_p(handle), device
        self._threads, self._shared_bytes = threads, shared_bytes
        # it lets the kernel start while the one before it ends: see kernels/triton/pdl.py
        self._early = _Attribute(_STREAM_SERIALIZATION, 0, 1)

    def launch(self, grid: Sequence[int], arguments: bytes) -> None:
        """With one argument, a structure that is passed by value."""
        held = ctypes.create_string_buffer(arguments, len(arguments))
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(held))
        config = _Config(
            (ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(self._threads, 1, 1), self._shared_bytes,
            torch._C._cuda_getCurrentRawStream(self._device), ctypes.addressof(self._early), 1,
        )  # fmt: skip
        if torch.cuda.current_device() == self._device:
            self._start(config, pointers)
        else:
            with torch.cuda.device(self._device):
                self._start(config, pointers)

    def _start(self, config: _Config, pointers: Any) -> None:
        launch = _driver().cuLaunchKernelEx
        code = launch(ctypes.byref(config), self._handle, pointers, None)
        if code == _NO_CONTEXT:
            _use_primary_context(self._device)
            code = launch(ctypes.byref(config), self._handle, pointers, None)
        _check(code, "cuLaunchKernelEx")


def load(cubin: Path, entry: str, device: int, threads: int, shared_bytes: int) -> Function:
    driver, handle = _driver(), ctypes.c_void_p()
    with torch.cuda.device(device):
        _use_primary_context(device)
        module = _module(cubin, device)
        _check(driver.cuModuleGetFunction(ctypes.byref(handle), module, entry.encode()), f"looking for {entry}")
        # as many blocks of a processor as its shared memory holds: its first-level cache is of no use to us
        _check(driver.cuFuncSetAttribute(handle, _CARVEOUT, 100), f"shared memory for {entry}")
        _check(driver.cuFuncSetAttribute(handle, _SHARED_BYTES, shared_bytes), f"{shared_bytes} bytes for {entry}")
    assert handle.value is not None
    return Function(handle.value, device, threads, shared_bytes)


@cache
def _module(cubin: Path, device: int) -> ctypes.c_void_p:
    """Kept for as long as the process lives: graphs hold what is in it."""
    module = ctypes.c_void_p()
    _check(_driver().cuModuleLoadData(ctypes.byref(module), cubin.read_bytes()), f"loading {cubin}")
    return module


def _use_primary_context(device: int) -> None:
    """Torch's: what it has allocated is in no other."""
    driver, number, context, current = _driver(), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    _check(driver.cuCtxGetCurrent(ctypes.byref(current)), "cuCtxGetCurrent")
    if current.value is None:
        _check(driver.cuDeviceGet(ctypes.byref(number), device), "cuDeviceGet")
        _check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), number), "cuDevicePrimaryCtxRetain")
        _check(driver.cuCtxSetCurrent(context), "cuCtxSetCurrent")


@cache
def _driver() -> ctypes.CDLL:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DriverError(f"there is no NVIDIA driver: {error}") from None
    _check_code(driver.cuInit(0), "cuInit", driver)
    return driver


def _check(code: int, what: str) -> None:
    if code:
        _check_code(code, what, _driver())


def _check_code(code: int, what: str, driver: ctypes.CDLL) -> None:
    if code:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(code, ctypes.byref(text))
        raise DriverError(f"{what}: {(text.value or b'unknown error').decode()} ({code})")
