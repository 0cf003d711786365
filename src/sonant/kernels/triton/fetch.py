"""Weights on their way from memory into the second-level cache, before anybody has registers or shared memory for them.

With few rows a kernel is a chain of waits in which memory would be idle: for the kernel before, for its input, for the
programs that share its depth. So the first thing that it does is to ask for the next kernel's weights, each program for
its share of them, which it finds in the cache then. That has room for a layer's.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.reference import Weight, parts_of

_WARP = tl.constexpr(32)
_ASM = tl.constexpr("cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;")
_UNIT_BYTES = 16  # places and sizes are multiples of it
_TOO_LARGE_BYTES = 1 << 20  # to be asked for at once
_MOST_BYTES = 24 << 20  # half of an H200's cache


@triton.jit
def fetch_share(weight, elements, piece, program, WARPS: tl.constexpr):
    """A program's share of a weight, a piece for each of its warps; the last ones may overlap. No warps: nothing.

    All lanes of a warp ask for the same: the instruction is the warp's, and with different places it would be repeated
    for each lane. Only for who may use PDL: older GPUs do not know it.
    """
    if WARPS > 0:
        at = (program * WARPS + tl.arange(0, _WARP * WARPS) // _WARP) * piece
        start = weight + tl.minimum(at, elements - piece)
        size = tl.zeros(start.shape, tl.int32) + piece * (weight.dtype.element_ty.primitive_bitwidth // 8)
        tl.inline_asm_elementwise(_ASM, "=r,l,r", [start.to(tl.uint64), size], dtype=tl.int32, is_pure=False, pack=1)


def piece_of(weight: Tensor, programs: int, warps: int) -> int:
    """Elements that each warp asks for. 0: sizes are no multiples of what can be asked for, a piece would be too large,
    or nothing would be left of the cache."""
    unit = _UNIT_BYTES // weight.itemsize
    if not weight.is_contiguous() or weight.numel() % unit or weight.numel() * weight.itemsize > _MOST_BYTES:
        return 0
    piece = unit * triton.cdiv(weight.numel(), unit * programs * warps)
    return piece if piece * weight.itemsize < _TOO_LARGE_BYTES else 0


def next_options(then: Weight | None, programs: int, warps: int, pdl: bool, instead: Tensor) -> dict[str, Any]:
    """Launch arguments of a kernel that fetches `then`, if it can; it is given `instead` where there is nothing."""
    values = None if then is None else parts_of(then)[0]
    piece = piece_of(values, programs, warps) if values is not None and pdl else 0
    if values is None or piece == 0:
        return {"then": instead, "then_elements": 0, "then_piece": 0, "THEN": 0}
    return {"then": values, "then_elements": values.numel(), "then_piece": piece, "THEN": warps}
