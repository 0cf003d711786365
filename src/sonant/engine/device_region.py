"""Device memory that can be given back and taken again at the same address, so that graphs can go on using it.

On a GPU an address range is reserved once, and physical memory is mapped there while it is held, by calls to the driver
itself, since torch has none for it. On a CPU torch's storage is resized to nothing and back, and views stay views.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from sonant.byte_size import shown
from sonant.errors import EngineError

_PINNED, _ON_DEVICE, _READ_WRITE, _MINIMUM = 1, 1, 3, 0  # CU_MEM_ALLOCATION_TYPE_…, LOCATION_TYPE_…, ACCESS_FLAGS_…


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Flags(ctypes.Structure):
    _fields_ = (
        ("compression", ctypes.c_ubyte), ("rdma", ctypes.c_ubyte), ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )  # fmt: skip


class _Properties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", _Location), ("metadata", ctypes.c_void_p),
        ("flags", _Flags),
    )  # fmt: skip


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class _MappedMemory:
    """Physical memory at a reserved address."""

    def __init__(self, count: int, device: int) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._location = _Location(_ON_DEVICE, device)
        self._properties = _Properties(type=_PINNED, location=self._location)
        grain = ctypes.c_size_t()
        self._call("cuMemGetAllocationGranularity", ctypes.byref(grain), ctypes.byref(self._properties), _MINIMUM)
        self.size = ctypes.c_size_t(-(-count // grain.value) * grain.value)
        self.address = ctypes.c_uint64()
        reserve = (ctypes.byref(self.address), self.size, ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_uint64(0))
        self._call("cuMemAddressReserve", *reserve)
        self._handle = ctypes.c_uint64()

    def map(self) -> None:
        self._call("cuMemCreate", ctypes.byref(self._handle), self.size, ctypes.byref(self._properties), _u64(0))
        self._call("cuMemMap", self.address, self.size, ctypes.c_size_t(0), self._handle, _u64(0))
        access = _Access(self._location, _READ_WRITE)
        self._call("cuMemSetAccess", self.address, self.size, ctypes.byref(access), ctypes.c_size_t(1))

    def unmap(self) -> None:
        self._call("cuMemUnmap", self.address, self.size)
        self._call("cuMemRelease", self._handle)

    def _call(self, name: str, *args: Any) -> None:
        error = getattr(self._driver, name)(*args)
        if error:
            raise EngineError(
                f"{name} failed with CUDA error {error} for {shown(getattr(self, 'size', ctypes.c_size_t()).value)} of "
                "GPU memory: somebody else has taken it; lower gpu_share, or wake fewer models at a time"
            )


def _u64(value: int) -> ctypes.c_uint64:
    return ctypes.c_uint64(value)


class _Bytes:
    """Describes memory to torch that torch did not allocate."""

    def __init__(self, address: int, count: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (count,), "typestr": "|u1", "data": (address, False), "version": 3,
        }  # fmt: skip


class DeviceRegion:
    """`memory` [bytes] uint8 is usable from the start; nobody may touch it between `release` and `restore`."""

    def __init__(self, count: int, device: torch.device) -> None:
        self.count, self.device = count, device
        self._mapped: _MappedMemory | None = None
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # makes sure that the driver has a context
            self._mapped = _MappedMemory(count, device.index or 0)
            self._mapped.map()
            self.memory: Tensor = torch.as_tensor(_Bytes(self._mapped.address.value, count), device=device)
        else:
            self.memory = torch.empty(count, dtype=torch.uint8, device=device)

    def release(self) -> None:
        """Give the memory back; its contents are lost."""
        if self._mapped is not None:
            torch.cuda.synchronize(self.device)
            self._mapped.unmap()
        else:
            self.memory.untyped_storage().resize_(0)

    def restore(self) -> None:
        if self._mapped is not None:
            self._mapped.map()
        else:
            self.memory.untyped_storage().resize_(self.count)
