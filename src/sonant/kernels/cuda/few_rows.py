"""Products with 2 to 256 rows in CUDA C++: the wrapper of `source/few_rows.cu`.

It serves where it was measured to be faster (`Tile.cuda`): a tile has rows (0: all of them), columns and depth of a
block, and blocks of a cluster that share the depth; with one stage the next kernel may start at once, with two after
this one has asked for its input. What it has no kernel for it leaves to the caller.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product

import torch
from torch import Tensor

from sonant.kernels.cuda.compiler import Program
from sonant.kernels.cuda.kernel import CudaKernel
from sonant.kernels.cuda.usable import is_usable
from sonant.kernels.tuning import Tile

MOST_ROWS = 256
_BLOCK_ROWS = (16, 32, 64, 128)
_THREADS = 256
_LINES = (64, 128)  # of weights, by which one warpgroup multiplies or two
_RANKS = (1, 2, 4, 8)  # blocks that every Hopper GPU puts into one cluster
_MOST_PIECES = 16  # of 16 bytes, that a thread holds of the input
_SHARED_BYTES = 227 << 10
_PROCESSORS = 132  # of an H100 or H200
_ARGS = struct.Struct("<5Q3ifi4x")  # FewArgs


def _block_rows(tile: Tile, rows: int) -> int:
    return tile.m or max(16, 1 << (rows - 1).bit_length())


def _shares(block_rows: int) -> int:
    """Warps that share the depth of eight rows."""
    return max(1, _THREADS // 32 // (block_rows // 8))


def _shared_bytes(block_rows: int, lines: int, deep: int, ranks: int, norm: bool) -> int:
    """As few_rows.cu has it: weights, rows, a gate, and with a norm its gain and the squares of shares of rows."""
    return 2 * deep * (lines + block_rows) + norm * (2 * deep + 4 * ranks * _shares(block_rows) * block_rows) + 8


@cache
def _kernel(block_rows: int, lines: int, deep: int, ranks: int, pushed: bool, norm: bool, gated: bool) -> CudaKernel:
    defines = {
        "ROWS": block_rows, "LINES": lines, "DEPTH": deep, "RANKS": ranks, "NORM": int(norm), "GATED": int(gated),
        "PUSHED": int(pushed),
    }  # fmt: skip
    program = Program("few_rows.cu", defines, features="a")
    shared = _shared_bytes(block_rows, lines, deep, ranks, norm)
    return CudaKernel(program, "few_rows", _ARGS, shared, _THREADS, cluster=ranks if ranks > 1 else 0)


def kernel_for(tile: Tile, rows: int, *, norm: bool, gated: bool) -> CudaKernel:
    lines, pushed = tile.n * (2 if gated else 1), tile.fold == 1
    return _kernel(_block_rows(tile, rows), lines, tile.k, tile.splits, pushed, norm, gated)


def fits(tile: Tile, rows: int, depth: int, columns: int, *, norm: bool, gated: bool) -> bool:
    block_rows, lines = _block_rows(tile, rows), tile.n * (2 if gated else 1)
    if rows > MOST_ROWS or block_rows not in _BLOCK_ROWS or lines not in _LINES or columns % tile.n:
        return False
    if tile.splits not in _RANKS or tile.k * tile.splits != depth or tile.k % (32 * _shares(block_rows)):
        return False
    if block_rows * tile.k > _MOST_PIECES * 8 * _THREADS:
        return False
    sums = 4 * lines * (block_rows + 8)  # where weights and rows were
    return sums <= 2 * (lines + block_rows) * tile.k and (
        _shared_bytes(block_rows, lines, tile.k, tile.splits, norm) <= _SHARED_BYTES
    )  # fmt: skip


def candidates(rows: int, depth: int, columns: int, *, norm: bool, gated: bool) -> Iterator[Tile]:
    """From half a block for each processor to six."""
    for m, lines, ranks in product((0,) if rows <= 64 else (64, 128), _LINES, _RANKS):
        n = lines // (2 if gated else 1)
        tile = Tile(m, n, depth // ranks, _THREADS // 32, 1, ranks, cuda=True)
        blocks = columns // n * ranks * (-(-rows // m) if m else 1)
        enough = 0.45 * _PROCESSORS <= blocks <= 6 * _PROCESSORS
        if enough and fits(tile, rows, depth, columns, norm=norm, gated=gated):
            yield from (tile, replace(tile, stages=2))


def multiply(
    x: Tensor, weight: Tensor, out: Tensor, tile: Tile, *, gain: Tensor | None, eps: float, gated: bool,
    residual: Tensor | None,
) -> bool:  # fmt: skip
    """Fill `out` [rows, columns] with x [rows, depth] times weight [columns (twice if gated), depth], and the rest.
    False: it cannot be done here, and nothing was."""
    (rows, depth), columns, norm = x.shape, out.shape[1], gain is not None
    given = [t for t in (x, weight, gain, residual, out) if t is not None]
    if any(t.dtype != torch.bfloat16 or t.data_ptr() % 16 for t in given):
        return False
    if not fits(tile, rows, depth, columns, norm=norm, gated=gated):
        return False
    kernel = kernel_for(tile, rows, norm=norm, gated=gated)
    if not is_usable(kernel, x.device):
        return False
    kernel.launch(
        x.device, (columns // tile.n * tile.splits * -(-rows // _block_rows(tile, rows)), 1, 1),
        x.data_ptr(), weight.data_ptr(), 0 if gain is None else gain.data_ptr(),
        0 if residual is None else residual.data_ptr(), out.data_ptr(), rows, columns, depth, eps, tile.stages == 1,
    )  # fmt: skip
    return True
