"""Which tile a product of tiled_gemm.py uses, and what a tuner measures.

With operands of eight bits it is the measured one, or a rule's. With sixteen the library has a good product, too, so
there is a tile only where it was measured to be faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from sonant.kernels.gpu import stages_within
from sonant.kernels.tuning import Tile, find

_LEAST_ROWS = 32  # up to here products of small_m_gemm.py win, whose left operand is the weight
_MOST_ROWS = 64  # above it the library is as good as any, in sixteen bits, wherever it was measured
_PROCESSORS = 132  # of an H100 or H200
_SHARED_BYTES = 227 << 10
_MOST_SPLITS = 8
_LEAST_COLUMNS = 16
_LEAST_DEPTH = 32  # values of eight bits that tensor cores take at a time
_LINE_BYTES = 128, 256  # of a tile's depth, that a tuner tries
_FETCHED_BYTES = 9 << 20  # the largest weight that a product prefetches before there is input
_SPLIT_DEPTH = 3072  # below it adding up partial sums costs more than it hides
# rows and columns (of both halves, if gated) of the tiles that a tuner tries
_WIDTHS = (64, 16), (64, 32), (64, 64), (64, 128), (64, 256), (128, 64), (128, 128), (128, 256)


def shape_key(depth: int, columns: int, gated: bool, item_bytes: int = 1) -> str:
    return f"{depth}x{columns}{'x2' if gated else ''} {8 * item_bytes}"


def tile_for(rows: int, depth: int, columns: int, gated: bool, device: torch.device) -> Tile:
    """The tile for operands of eight bits."""
    found = find("scaled", shape_key(depth, columns, gated), rows, device)
    if found is not None:
        return found
    tile = rule(rows, depth, columns, gated)
    stage_bytes = tile.k * (tile.m + _planes(gated) * tile.n)
    return replace(tile, stages=stages_within(device, tile.stages, stage_bytes))


def known_tile(x: Tensor, weight: Tensor, gated: bool) -> Tile | None:
    """The tile for operands of sixteen bits; None: the library's product is used, or another kernel's."""
    depth, columns = x.shape[-1], len(weight) // _planes(gated)
    rows = x.numel() // depth
    if not _LEAST_ROWS < rows <= _MOST_ROWS or x.dtype.itemsize != 2:
        return None
    tile = find("tiled", shape_key(depth, columns, gated, 2), rows, x.device)
    return None if tile is None or tile.library else tile


def fits(tile: Tile, depth: int) -> bool:
    return tile.k >= _LEAST_DEPTH and depth % (tile.k * tile.splits) == 0


def rule(rows: int, depth: int, columns: int, gated: bool, item_bytes: int = 1) -> Tile:
    """The largest tile of which there are enough for all processors, as in the measurements; where there are too few
    even of the narrowest, a great depth is split. Large weights are not prefetched: all at once they would fill the
    memory's queues, and what the previous kernel still needs would wait behind them."""
    for m, wide in ((128, 128), (64, 128), (64, 64), (64, 32)):
        if _suits(m, rows) and _programs(m, wide // _planes(gated), rows, columns) >= 0.7 * _PROCESSORS:
            break
    k = min((256 if wide <= 64 else 128) // item_bytes, depth & -depth)
    stages = next(stages for stages in (6, 4, 3) if _fits_memory(m, wide, k * item_bytes, stages))
    ahead = _planes(gated) * columns * depth * item_bytes <= _FETCHED_BYTES
    tile = Tile(m, wide // _planes(gated), k, warps=8 if m * wide > 64 * 128 else 4, stages=stages, ahead=ahead)
    return replace(tile, splits=_splits(tile, rows, depth, columns)[-1]) if depth >= _SPLIT_DEPTH else tile


def candidates(rows: int, depth: int, columns: int, gated: bool, item_bytes: int = 1) -> Iterator[Tile]:
    """Tiles worth measuring, the rule's own first."""
    yield rule(rows, depth, columns, gated, item_bytes)
    for m, wide in _WIDTHS:
        n, warps = wide // _planes(gated), 4 if m * wide <= 64 * 128 else 8
        for k, stages in ((bytes // item_bytes, stages) for bytes in _LINE_BYTES for stages in (3, 4, 6)):
            tile = Tile(m, n, k, warps, stages)
            whole = n >= _LEAST_COLUMNS and depth % k == 0 and _suits(m, rows)
            if whole and _fits_memory(m, wide, k * item_bytes, stages):
                for splits in _splits(tile, rows, depth, columns):
                    yield from (replace(tile, splits=splits, ahead=ahead) for ahead in (True, False))


def _planes(gated: bool) -> int:
    return 2 if gated else 1


def _suits(m: int, rows: int) -> bool:
    """Whether less than half of a tile's rows are idle. Tensor cores take 64 at a time, however few there are."""
    return m == 64 or m < 2 * rows


def _fits_memory(m: int, wide: int, line_bytes: int, stages: int) -> bool:
    return stages * line_bytes * (m + wide) <= _SHARED_BYTES


def _programs(m: int, n: int, rows: int, columns: int) -> int:
    return -(-rows // m) * -(-columns // n)


def _splits(tile: Tile, rows: int, depth: int, columns: int) -> list[int]:
    """Numbers of splits: 1 and, if programs are few, the one that comes nearest to a program per processor."""
    programs, steps = _programs(tile.m, tile.n, rows, columns), depth // tile.k
    divisors = [s for s in range(1, _MOST_SPLITS + 1) if steps % s == 0 and programs * s <= 1.2 * _PROCESSORS]
    return sorted({1, *divisors[-1:]})
