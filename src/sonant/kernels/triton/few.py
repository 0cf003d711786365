"""Matrix products with a few rows on tensor cores, read at the speed of the weights.

Each program holds one tile of the weights, on its way before the program waits for its input. Tiles of one column
strip split the depth between them; whichever comes last adds up what they left, in their order, so that the result
does not depend on who that was. The norm's scale is a factor of the whole row and is applied there too. Weights are
the left side of the product: a warp then owns the columns it computes, and only the few rows of the input are shared.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.triton.early import begin, options, wait

ROWS = 32  # above it the library's products win
_COLUMNS = 64  # of a strip: what one Hopper matrix instruction takes
_DEPTH = 256  # of a tile, at most


@triton.jit
def _strip(weight, column, k, depth, known):
    return tl.load(weight + column.to(tl.int64)[:, None] * depth + k[None], mask=known[:, None], other=0.0)


@triton.jit
def _swiglu(gate, up):
    """Rounded where the reference rounds."""
    wide = gate.to(tl.float32)
    silu = (wide / (1 + tl.exp(-wide))).to(gate.dtype).to(tl.float32)
    return silu * up.to(tl.float32)


@triton.jit
def _sum_of_parts(partial, slots, cell, PARTS: tl.constexpr, CELLS: tl.constexpr):
    """Read past the first-level cache, which may hold what was there before."""
    total = tl.load(partial + slots * CELLS + cell, cache_modifier=".cg")
    for part in tl.static_range(1, PARTS):
        total += tl.load(partial + (slots + part) * CELLS + cell, cache_modifier=".cg")
    return total


@triton.jit
def _few(
    x, weight, gain, residual, out, partial, squares, arrivals, rows, columns, depth, eps,
    NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, EARLY: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    strip, part = tl.program_id(0), tl.program_id(1)
    row = tl.arange(0, BLOCK_M)
    column = strip * BLOCK_N + tl.arange(0, BLOCK_N)
    k = part * BLOCK_K + tl.arange(0, BLOCK_K)
    present, known = row < rows, column < columns
    own = _strip(weight, column, k, depth, known)
    if GATED:
        up = _strip(weight + columns.to(tl.int64) * depth, column, k, depth, known)
    if NORM:
        scale_of = tl.load(gain + k).to(tl.float32)
    wait(EARLY)
    value = tl.load(x + row[None] * depth + k[:, None], mask=present[None], other=0.0)
    square = tl.zeros([BLOCK_M], tl.float32)
    if NORM:
        wide = value.to(tl.float32)
        square = tl.sum(wide * wide, axis=0)
        value = (wide * scale_of[:, None]).to(value.dtype)
    total = tl.dot(own, value, input_precision=PRECISION)
    other = total
    if GATED:
        other = tl.dot(up, value, input_precision=PRECISION)

    last = True
    cell = tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + row[None]
    slot = strip * PARTS
    planes: tl.constexpr = 2 if GATED else 1
    if PARTS > 1:
        tl.store(partial + (slot + part) * planes * BLOCK_M * BLOCK_N + cell, total)
        if GATED:
            tl.store(partial + ((slot + part) * planes + 1) * BLOCK_M * BLOCK_N + cell, other)
        if NORM:
            tl.store(squares + (slot + part) * BLOCK_M + row, square)
        tl.debug_barrier()  # all of the program's threads have stored before it says so
        last = tl.atomic_add(arrivals + strip, 1) == PARTS - 1
    if last:
        if PARTS > 1:
            tl.store(arrivals + strip, 0)
            total = _sum_of_parts(partial, slot, cell, PARTS, planes * BLOCK_M * BLOCK_N)
            if GATED:
                other = _sum_of_parts(partial + BLOCK_M * BLOCK_N, slot, cell, PARTS, planes * BLOCK_M * BLOCK_N)
            if NORM:
                square = _sum_of_parts(squares, slot, row, PARTS, BLOCK_M)
        dtype = out.dtype.element_ty
        if NORM:
            scale = tl.rsqrt(square / depth + eps)[None]
            total *= scale
            other *= scale
        if GATED:
            total = _swiglu(total.to(dtype), other.to(dtype))
        at = row[None] * columns + column[:, None]
        mask = present[None] & known[:, None]
        if ADD:
            total = tl.load(residual + at, mask=mask, other=0.0).to(tl.float32) + total.to(dtype).to(tl.float32)
        tl.store(out + at, total.to(dtype), mask=mask)


@cache
def _arrivals(device: torch.device, weight: int, strips: int) -> Tensor:
    """Counters that every product leaves at zero; a set for each weight (by address), since one engine uses a weight
    once at a time and two engines have two. Made by the run that comes before a capture, and never given up: graphs
    hold their addresses."""
    return torch.zeros(strips, dtype=torch.int32, device=device)


def fits(rows: int, depth: int) -> bool:
    return rows <= ROWS and block_depth(depth) >= 16


def block_depth(depth: int) -> int:
    """The largest power of two that divides the depth, up to a tile's."""
    return min(_DEPTH, depth & -depth)


def product(
    x: Tensor, weight: Tensor, out: Tensor, *, gain: Tensor | None, eps: float, gated: bool, residual: Tensor | None
) -> None:
    """Fill `out` [rows, columns] with x [rows, depth] times weight [columns (twice if gated), depth], and the rest."""
    rows, depth = x.shape
    columns = out.shape[1]
    block_m = max(16, triton.next_power_of_2(rows))
    block_k = block_depth(depth)
    parts, strips = depth // block_k, triton.cdiv(columns, _COLUMNS)
    cells = (2 if gated else 1) * block_m * _COLUMNS if parts > 1 else 0
    partial = torch.empty(strips * parts * cells + strips * parts * block_m, dtype=torch.float32, device=x.device)
    arrivals = _arrivals(x.device, weight.data_ptr(), strips)
    _few[(strips, parts)](
        x, weight, weight if gain is None else gain, out if residual is None else residual, out,
        partial, partial[strips * parts * cells :], arrivals, rows, columns, depth, eps,
        NORM=gain is not None, GATED=gated, ADD=residual is not None,
        PRECISION="ieee" if x.dtype.itemsize == 4 else "tf32",
        BLOCK_M=block_m, BLOCK_N=_COLUMNS, BLOCK_K=block_k, PARTS=parts, num_warps=4, **options(x),
    )  # fmt: skip
