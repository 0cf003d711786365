"""Loads machine code onto a GPU and launches it on torch's current stream, through the driver's own library.

Torch has made the context and owns the stream; the driver only loads modules and launches. A launch may be captured in
a CUDA graph like any other. The first launch of a kernel loads it, which only a relaxed capture may do; other captures
come after an eager run (engine/graphs.py).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from sonant.kernels.cuda.compiler import BuildError

_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_CARVEOUT = 9  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, in percent
_COOPERATIVE = 2  # CU_LAUNCH_ATTRIBUTE_COOPERATIVE
_CLUSTER = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
_STREAM_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_REFUSED = (1, 801)  # CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED
_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT: this thread has not used the GPU yet


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16))


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
    """The driver refused, for example machine code that is newer than it."""


@dataclass(frozen=True)
class BlockSize:
    threads: int
    shared_bytes: int
    cluster: int = 0  # blocks of a cluster; 0: there are no clusters
    resident: int = 0  # blocks that must all run at once; 0: they need not


class Function:
    """One kernel on one GPU."""

    def __init__(self, handle: int, device: int, size: BlockSize) -> None:
        self._handle, self._device, self._size = ctypes.c_void_p(handle), device, size
        # early: the kernel may start before the previous one has ended, see kernels/triton/pdl.py
        self._late, self._attributes = _attributes(size, early=False), _attributes(size, early=True)

    def launch(self, grid: Sequence[int], arguments: bytes) -> None:
        """Launch with one argument, a structure that is passed by value."""
        held = ctypes.create_string_buffer(arguments, len(arguments))
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(held))
        if torch.cuda.current_device() == self._device:
            self._start(grid, pointers)
        else:
            with torch.cuda.device(self._device):
                self._start(grid, pointers)

    def _start(self, grid: Sequence[int], pointers: Any) -> None:
        code = self._try(grid, pointers)
        if code == _NO_CONTEXT:
            _use_primary_context(self._device)
            code = self._try(grid, pointers)
        if code in _REFUSED and self._size.resident and self._attributes is not self._late:
            # this driver has no early start for cooperative grids: from now on it is not asked for
            self._attributes = self._late
            code = self._try(grid, pointers)
        _check(code, "cuLaunchKernelEx")

    def _try(self, grid: Sequence[int], pointers: Any) -> int:
        stream = torch._C._cuda_getCurrentRawStream(self._device)
        config = _config(grid, self._size, stream, self._attributes)
        return int(library().cuLaunchKernelEx(ctypes.byref(config), self._handle, pointers, None))

    def check_room(self) -> None:
        """Raise DriverError if not all of its blocks can run at once."""
        size, found = self._size, ctypes.c_int()
        config = _config((size.resident, 1, 1), size, 0, self._late)
        asked = library().cuOccupancyMaxActiveClusters(ctypes.byref(found), self._handle, ctypes.byref(config))
        _check(asked, "cuOccupancyMaxActiveClusters")
        if found.value * size.cluster < size.resident:
            raise DriverError(f"only {found.value} clusters of {size.cluster} run at once, not {size.resident} blocks")


def _attributes(size: BlockSize, *, early: bool) -> ctypes.Array[_Attribute]:
    asked: list[tuple[int, tuple[int, ...]]] = [(_STREAM_SERIALIZATION, (1,))] * early
    asked += [(_CLUSTER, (size.cluster, 1, 1))] * bool(size.cluster) + [(_COOPERATIVE, (1,))] * bool(size.resident)
    return (_Attribute * len(asked))(*(_Attribute(name, 0, (ctypes.c_uint * 16)(*value)) for name, value in asked))


def _config(grid: Sequence[int], size: BlockSize, stream: int, attributes: ctypes.Array[_Attribute]) -> _Config:
    return _Config(
        (ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(size.threads, 1, 1), size.shared_bytes, stream,
        ctypes.addressof(attributes), len(attributes),
    )  # fmt: skip


def load(cubin: Path, entry: str, device: int, size: BlockSize) -> Function:
    driver, handle = library(), ctypes.c_void_p()
    with torch.cuda.device(device):
        _use_primary_context(device)
        module = _module(cubin, device)
        _check(driver.cuModuleGetFunction(ctypes.byref(handle), module, entry.encode()), f"looking for {entry}")
        # as much shared memory as possible, for more blocks on a processor: its L1 cache is of no use to us
        _check(driver.cuFuncSetAttribute(handle, _CARVEOUT, 100), f"shared memory for {entry}")
        asked = driver.cuFuncSetAttribute(handle, _SHARED_BYTES, size.shared_bytes)
        _check(asked, f"{size.shared_bytes} bytes for {entry}")
        assert handle.value is not None
        function = Function(handle.value, device, size)
        if size.resident:
            function.check_room()
    return function


@cache
def _module(cubin: Path, device: int) -> ctypes.c_void_p:
    """The loaded module, kept for as long as the process lives: graphs refer to what is in it."""
    module = ctypes.c_void_p()
    _check(library().cuModuleLoadData(ctypes.byref(module), cubin.read_bytes()), f"loading {cubin}")
    return module


def _use_primary_context(device: int) -> None:
    """Make torch's context current if there is none: torch's memory is in no other."""
    driver, number, context, current = library(), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    _check(driver.cuCtxGetCurrent(ctypes.byref(current)), "cuCtxGetCurrent")
    if current.value is None:
        _check(driver.cuDeviceGet(ctypes.byref(number), device), "cuDeviceGet")
        _check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), number), "cuDevicePrimaryCtxRetain")
        _check(driver.cuCtxSetCurrent(context), "cuCtxSetCurrent")


@cache
def library() -> ctypes.CDLL:
    """The driver's library; raise DriverError if there is none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DriverError(f"there is no NVIDIA driver: {error}") from None
    _check_code(driver.cuInit(0), "cuInit", driver)
    return driver


def _check(code: int, what: str) -> None:
    if code:
        _check_code(code, what, library())


def _check_code(code: int, what: str, driver: ctypes.CDLL) -> None:
    if code:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(code, ctypes.byref(text))
        raise DriverError(f"{what}: {(text.value or b'unknown error').decode()} ({code})")
