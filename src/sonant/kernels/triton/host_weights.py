# mypy: disable-error-code="assignment"
"""Kernels for weights that are not on the device.

Rows of a table are read across the bus, by the kernel itself: the address of pinned memory is the device's too. So
nothing is copied but what is asked for, no host takes part, and the read can be captured in a graph.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import globaltimer

_BLOCK = 1024


@triton.jit
def _host_rows(table, ids, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = column < width
    source = tl.load(ids + row).to(tl.int64)
    tl.store(out + row * width + column, tl.load(table + source * width + column, mask=known), mask=known)


@triton.jit(do_not_specialize=["amount"])
def _stamp(clock, amount, END: tl.constexpr):
    now = globaltimer()
    if END:
        tl.store(clock + 1, tl.load(clock + 1) + now - tl.load(clock))
        tl.store(clock + 2, tl.load(clock + 2) + amount)
    else:
        tl.store(clock, now)


def host_rows(table: Tensor, ids: Tensor) -> Tensor:
    flat, width = ids.contiguous(), table.shape[1]
    out = torch.empty(*ids.shape, width, dtype=table.dtype, device=ids.device)
    _host_rows[(flat.numel(), triton.cdiv(width, _BLOCK))](table, flat, out, width, BLOCK=_BLOCK, num_warps=4)
    return out


def stamp(clock: Tensor, *, end: bool, amount: int = 0) -> None:
    _stamp[(1,)](clock, amount, END=end, num_warps=1)
