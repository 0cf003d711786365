"""Weights on their way from memory into the second-level cache, before anybody has registers or shared memory for them.

With few rows a kernel is a chain of waits in which memory would be idle: for the kernel before, for its input, for the
programs that share its depth. So it fetches the rest of its own weights before it waits (`fetch_ahead`), or all of
the next kernel's (`fetch_next`), each program its share of them. The cache has room for a layer's.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

_ASM = tl.constexpr("cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;")
_UNIT_BYTES = 16  # places and sizes are multiples of it
_MOST_BYTES = 24 << 20  # half of an H200's cache


@triton.jit
def fetch_ahead(start, count):
    """`count` elements from each pointer in `start` on: whole multiples of 16 bytes, from a multiple of 16 on. Only for
    who may use PDL: older GPUs do not know it."""
    count_bytes = tl.zeros(start.shape, tl.int32) + count * (start.dtype.element_ty.primitive_bitwidth // 8)
    tl.inline_asm_elementwise(_ASM, "=r,l,r", [start.to(tl.uint64), count_bytes], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def fetch_next(weight, elements, piece, program, THREADS: tl.constexpr):
    """A program's share of a weight, a piece for each of its threads; the last ones may overlap."""
    if THREADS > 0:
        at = (program * THREADS + tl.arange(0, THREADS)) * piece
        fetch_ahead(weight + tl.minimum(at, elements - piece), piece)


def next_options(then: Tensor | None, programs: int, warps: int, pdl: bool, instead: Tensor) -> dict[str, Any]:
    """Launch arguments of a kernel that fetches `then`, if it can; it is given `instead` where there is nothing."""
    if then is None or not pdl or not then.is_contiguous() or then.numel() * then.itemsize > _MOST_BYTES:
        return {"then": instead, "then_elements": 0, "then_piece": 0, "THEN": 0}
    unit = _UNIT_BYTES // then.itemsize
    if then.numel() % unit:
        return next_options(None, programs, warps, pdl, instead)
    threads = 32 * warps
    piece = unit * triton.cdiv(then.numel(), unit * programs * threads)
    return {"then": then, "then_elements": then.numel(), "then_piece": piece, "THEN": threads}
