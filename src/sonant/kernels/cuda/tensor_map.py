"""Tensor maps, which describe matrices for a Hopper GPU's TMA copies; only the driver can encode them."""

from __future__ import annotations

import ctypes
from functools import lru_cache

from sonant.kernels.cuda.driver import DriverError, library

BYTES = 128
_ALIGNMENT = 64
_BFLOAT16 = 9  # CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
_SWIZZLE = {64: 3, 32: 2}  # CU_TENSOR_MAP_SWIZZLE_128B and _64B, for parts of so many columns
_PROMOTION_256B = 3  # CU_TENSOR_MAP_L2_PROMOTION_L2_256B


@lru_cache(maxsize=4096)
def tensor_map(address: int, shape: tuple[int, int, int], row_stride: int, part_lines: int, part_columns: int) -> bytes:
    """The tensor map of bfloat16 [rows, lines, columns] at this address, from whose rows parts (boxes) of 64 or 32
    columns are copied. Lines are contiguous; `row_stride` is in values."""
    rows, lines, columns = shape
    held = ctypes.create_string_buffer(BYTES + _ALIGNMENT)
    start = -(-ctypes.addressof(held) // _ALIGNMENT) * _ALIGNMENT
    code = library().cuTensorMapEncodeTiled(
        ctypes.c_void_p(start), ctypes.c_int(_BFLOAT16), ctypes.c_uint32(3), ctypes.c_void_p(address),
        (ctypes.c_uint64 * 3)(columns, lines, rows), (ctypes.c_uint64 * 2)(2 * columns, 2 * row_stride),
        (ctypes.c_uint32 * 3)(part_columns, part_lines, 1), (ctypes.c_uint32 * 3)(1, 1, 1),
        ctypes.c_int(0), ctypes.c_int(_SWIZZLE[part_columns]), ctypes.c_int(_PROMOTION_256B), ctypes.c_int(0),
    )  # fmt: skip
    if code:
        raise DriverError(f"the driver describes no {shape} in parts of {part_lines} lines ({code})")
    return ctypes.string_at(start, BYTES)
