"""Weights on their way from memory into the second-level cache, long before a kernel has room for them.

Together with pdl.py: a kernel that waits for the one before it has the memory to itself meanwhile, and no registers or
shared memory to put all of its weights in. The cache has room for a layer's.
"""

from __future__ import annotations

import triton
import triton.language as tl

_ASM = tl.constexpr("cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;")


@triton.jit
def fetch_ahead(start, count):
    """`count` elements from each pointer in `start` on: whole multiples of 16 bytes, from a multiple of 16 on. Only for
    who may use PDL: older GPUs do not know it."""
    count_bytes = tl.zeros(start.shape, tl.int32) + count * (start.dtype.element_ty.primitive_bitwidth // 8)
    tl.inline_asm_elementwise(_ASM, "=r,l,r", [start.to(tl.uint64), count_bytes], dtype=tl.int32, is_pure=False, pack=1)
