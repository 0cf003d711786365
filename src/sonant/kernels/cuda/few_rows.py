"""Products with 2 to 64 rows in CUDA C++: the wrapper of `source/few_rows.cu`.

It serves where a tuner has found it faster (`Tile.cuda`): a tile has columns for a block, blocks that share the depth,
and how many pieces of its input a warp has on the way. What it has no kernel for it leaves to the caller.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor

from sonant.kernels.cuda.compiler import Program
from sonant.kernels.cuda.kernel import CudaKernel
from sonant.kernels.cuda.usable import is_usable
from sonant.kernels.tuning import Tile

_PROCESSORS = 132  # of an H100 or H200
_WARPS = 8
_BLOCK = 32  # of the depth, at a time
_MOST_LINES = 64  # whose sums a thread has registers for
_SHARED_BYTES = 227 << 10
_BYTES_PER_NS = 110  # that a processor reads from the second-level cache
_SHARED_NS = 1600  # until the last of some blocks has the others' sums
_ARGS = struct.Struct("<7Q3if")  # FewArgs


def _padded(rows: int) -> int:
    return max(16, 1 << (rows - 1).bit_length())


def _depth_warps(block_rows: int) -> int:
    return _WARPS // 2 if block_rows == 64 else _WARPS


def _shared_bytes(block_rows: int, lines: int, deep: int, stages: int, norm: bool) -> int:
    """As few_rows.cu has it: weights, gain and rings, and later in their place the warps' sums."""
    warps = _depth_warps(block_rows)
    rings = _WARPS * stages * (block_rows * warps // _WARPS) * 2 * _BLOCK
    sums = 4 * (warps * block_rows * (lines + 9) + 1)
    return max(2 * deep * (lines + norm) + rings, sums)


@cache
def _kernel(block_rows: int, lines: int, deep: int, splits: int, stages: int, norm: bool, gated: bool) -> CudaKernel:
    defines = {
        "ROWS": block_rows, "LINES": lines, "DEPTH": deep, "SPLITS": splits, "STAGES": stages, "NORM": int(norm),
        "GATED": int(gated),
    }  # fmt: skip
    shared = _shared_bytes(block_rows, lines, deep, stages, norm)
    return CudaKernel(Program("few_rows.cu", defines), "few_rows", _ARGS, shared, threads=32 * _WARPS)


def kernel_for(tile: Tile, rows: int, depth: int, *, norm: bool, gated: bool) -> CudaKernel:
    lines = tile.n * (2 if gated else 1)
    return _kernel(_padded(rows), lines, depth // tile.splits, tile.splits, tile.stages, norm, gated)


def fits(tile: Tile, rows: int, depth: int, gated: bool, norm: bool) -> bool:
    block_rows, lines, deep = _padded(rows), tile.n * (2 if gated else 1), depth // tile.splits
    if rows > 64 or lines % 8 or lines > _MOST_LINES or deep * tile.splits != depth:
        return False
    step = _BLOCK * _depth_warps(block_rows)
    return deep % step == 0 and tile.stages <= deep // step and (
        _shared_bytes(block_rows, lines, deep, tile.stages, norm) <= _SHARED_BYTES
    )  # fmt: skip


def candidates(rows: int, depth: int, columns: int, gated: bool, norm: bool) -> Iterator[Tile]:
    """From half a block for each processor to two."""
    for n in (8, 16, 24, 32, 48, 64):
        for splits in (1, 2, 3, 4, 6, 8):
            if not 0.45 * _PROCESSORS <= -(-columns // n) * splits <= 2 * _PROCESSORS:
                continue
            for stages in (2, 4, 8):
                tile = Tile(0, n, 0, _WARPS, stages, splits, cuda=True)
                if fits(tile, rows, depth, gated, norm):
                    yield tile


def rule(rows: int, depth: int, columns: int, gated: bool, norm: bool, stages: int = 4) -> Tile | None:
    """The one to try first, by what a block reads after its wait and whether others share its depth."""
    tiles = [t for t in candidates(rows, depth, columns, gated, norm) if t.stages == stages]

    def expected_ns(tile: Tile) -> float:
        waves = -(-columns // tile.n) * tile.splits / _PROCESSORS
        read = 2 * _padded(rows) * depth / tile.splits / _BYTES_PER_NS
        return max(1.0, waves) * read + (_SHARED_NS if tile.splits > 1 else 0) + 1000 * max(0.0, 0.7 - waves)

    return min(tiles, key=expected_ns, default=None)


def product(
    x: Tensor, weight: Tensor, out: Tensor, tile: Tile, *, gain: Tensor | None, eps: float, gated: bool,
    residual: Tensor | None,
) -> bool:  # fmt: skip
    """Fill `out` [rows, columns] with x [rows, depth] times weight [columns (twice if gated), depth], and the rest.
    False: it cannot be done here, and nothing was."""
    (rows, depth), columns, planes = x.shape, out.shape[1], 2 if gated else 1
    given = [t for t in (x, weight, gain, residual) if t is not None]
    if any(t.dtype != torch.bfloat16 or t.data_ptr() % 16 for t in given):
        return False
    if not fits(tile, rows, depth, gated, gain is not None):
        return False
    kernel = kernel_for(tile, rows, depth, norm=gain is not None, gated=gated)
    if not is_usable(kernel, x.device):
        return False
    from sonant.kernels.triton.split_k import counters, workspace

    strips, cells = -(-columns // tile.n), _padded(rows) * (tile.n * planes + 1)
    partials = workspace(x, strips, tile.splits, cells)
    kernel.launch(
        x.device, (strips, tile.splits, 1),
        x.data_ptr(), weight.data_ptr(), 0 if gain is None else gain.data_ptr(),
        0 if residual is None else residual.data_ptr(), out.data_ptr(), partials.data_ptr(),
        counters(weight, strips, tile.splits).data_ptr(), rows, columns, depth, eps,
    )  # fmt: skip
    return True
