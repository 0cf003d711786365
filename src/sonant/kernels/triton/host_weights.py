# mypy: disable-error-code="assignment"
"""Kernels for weights that are not on the device.

The kernel itself reads rows of a table across the bus, since pinned memory has the same address on the device. So only
the requested rows are copied, the host takes no part, and the read can be captured in a graph.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import globaltimer

from sonant.kernels.sizes import cdiv

_BLOCK = 1024


@triton.jit
def _host_rows(table, ids, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = column < width
    source = tl.load(ids + row).to(tl.int64)
    tl.store(out + row * width + column, tl.load(table + source * width + column, mask=known), mask=known)


@triton.jit
def _begin(clock):
    tl.store(clock, globaltimer())


@triton.jit
def _end(clock, amount):
    tl.store(clock + 1, tl.load(clock + 1) + globaltimer() - tl.load(clock))
    tl.store(clock + 2, tl.load(clock + 2) + amount)


# A profile tells a wait from a pass by the kernels' names.
@triton.jit
def _pass_begins(clock):
    _begin(clock)


@triton.jit(do_not_specialize=["amount"])
def _pass_ends(clock, amount):
    _end(clock, amount)


@triton.jit
def _weights_wanted(clock):
    _begin(clock)


@triton.jit
def _weights_there(clock):
    _end(clock, 0)


def host_rows(table: Tensor, ids: Tensor) -> Tensor:
    flat, width = ids.contiguous(), table.shape[1]
    out = torch.empty(*ids.shape, width, dtype=table.dtype, device=ids.device)
    _host_rows[(flat.numel(), cdiv(width, _BLOCK))](table, flat, out, width, BLOCK=_BLOCK, num_warps=4)
    return out


def pass_begins(clock: Tensor) -> None:
    _pass_begins[(1,)](clock, num_warps=1)


def pass_ends(clock: Tensor, amount: int) -> None:
    _pass_ends[(1,)](clock, amount, num_warps=1)


def wait_begins(clock: Tensor) -> None:
    _weights_wanted[(1,)](clock, num_warps=1)


def wait_ends(clock: Tensor) -> None:
    _weights_there[(1,)](clock, num_warps=1)
