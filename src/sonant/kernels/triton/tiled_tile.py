"""Which tile a product of tiled_gemm.py runs in, and what a tuner measures.

With eight bits on both sides it is the measured one, or a rule's. With sixteen the library has a good product, too:
tiles are only what a measurement has found to be faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from sonant.kernels.tuning import Tile, find

FEW_ROWS = 64  # with which a product is mostly waiting for its weights: the first are fetched before it may begin
_LEAST_ROWS = 32  # up to which those of small_m_gemm.py win, whose left side are the weights
_PROCESSORS = 132  # of an H100 or H200
_SHARED_BYTES = 227 << 10
_MOST_SPLITS = 8
_LEAST_DEPTH = 32  # that tensor cores take of eight bits at a time
_SPLIT_DEPTH = 3072  # under it sums over programs cost more than they hide
_WIDTHS = (64, 32), (64, 64), (64, 128), (64, 256), (128, 64), (128, 128), (128, 256)  # of tiles that are tried


def shape_key(depth: int, columns: int, gated: bool, item_bytes: int = 1) -> str:
    return f"{depth}x{columns}{'x2' if gated else ''} {8 * item_bytes}"


def tile_for(rows: int, depth: int, columns: int, gated: bool, device: torch.device) -> Tile:
    """With eight bits on both sides."""
    found = find("scaled", shape_key(depth, columns, gated), rows, device)
    return found or rule(rows, depth, columns, gated)


def known_tile(x: Tensor, weight: Tensor, gated: bool) -> Tile | None:
    """With sixteen bits on both sides and few rows; None: the library's product, or another kernel's."""
    depth, columns = x.shape[-1], len(weight) // _planes(gated)
    rows = x.numel() // depth
    if not _LEAST_ROWS < rows <= FEW_ROWS or x.dtype.itemsize != 2:
        return None
    tile = find("tiled", shape_key(depth, columns, gated, 2), rows, x.device)
    return None if tile is None or tile.library else tile


def fits(tile: Tile, depth: int) -> bool:
    return tile.k >= _LEAST_DEPTH and depth % (tile.k * tile.splits) == 0


def rule(rows: int, depth: int, columns: int, gated: bool, item_bytes: int = 1) -> Tile:
    """The largest tile of which there are enough for all processors, as what was measured has it; where there are too
    few even of the narrowest, a great depth is split."""
    for m, wide in ((128, 128), (64, 128), (64, 64), (64, 32)):
        if _suits(m, rows) and _programs(m, wide // _planes(gated), rows, columns) >= 0.7 * _PROCESSORS:
            break
    k = min((256 if wide <= 64 else 128) // item_bytes, depth & -depth)
    stages = next(stages for stages in (6, 4, 3) if _fits_memory(m, wide, k * item_bytes, stages, rows))
    tile = Tile(m, wide // _planes(gated), k, warps=8 if m * wide > 64 * 128 else 4, stages=stages)
    return replace(tile, splits=_splits(tile, rows, depth, columns)[-1]) if depth >= _SPLIT_DEPTH else tile


def candidates(rows: int, depth: int, columns: int, gated: bool, item_bytes: int = 1) -> Iterator[Tile]:
    """Those worth a measurement; the rule's own comes first."""
    yield rule(rows, depth, columns, gated, item_bytes)
    for m, wide in _WIDTHS:
        n, warps = wide // _planes(gated), 4 if m * wide <= 64 * 128 else 8
        for k in (64 // item_bytes, 128 // item_bytes, 256 // item_bytes):
            for stages in (3, 4, 6):
                tile = Tile(m, n, k, warps, stages)
                if depth % k == 0 and _suits(m, rows) and _fits_memory(m, wide, k * item_bytes, stages, rows):
                    yield from (replace(tile, splits=splits) for splits in _splits(tile, rows, depth, columns))
    yield from _deep(rows, depth, columns, gated, item_bytes)


def _deep(rows: int, depth: int, columns: int, gated: bool, item_bytes: int) -> Iterator[Tile]:
    """Those with one tile for each program, all of whose weights are on their way before there is input."""
    for wide, k in ((wide, k) for wide in (32, 64) for k in (512, 1024) if rows <= FEW_ROWS and depth % k == 0):
        n, splits = wide // _planes(gated), depth // k
        few = splits <= _MOST_SPLITS and splits * _programs(64, n, rows, columns) <= 2 * _PROCESSORS
        if few and k * item_bytes * (64 + wide) <= _SHARED_BYTES:
            yield Tile(64, n, k, warps=8, stages=1, splits=splits)


def _planes(gated: bool) -> int:
    return 2 if gated else 1


def _suits(m: int, rows: int) -> bool:
    """Whether less than half of a tile's rows are idle. Tensor cores take 64 at a time, however few there are."""
    return m == 64 or m < 2 * rows


def _fits_memory(m: int, wide: int, line_bytes: int, stages: int, rows: int) -> bool:
    """With few rows there is one stage more: what is fetched before the product may begin."""
    return (stages + (rows <= FEW_ROWS)) * line_bytes * (m + wide) <= _SHARED_BYTES


def _programs(m: int, n: int, rows: int, columns: int) -> int:
    return -(-rows // m) * -(-columns // n)


def _splits(tile: Tile, rows: int, depth: int, columns: int) -> list[int]:
    """1, and where programs are few what comes nearest to one for each processor."""
    programs, steps = _programs(tile.m, tile.n, rows, columns), depth // tile.k
    divisors = [s for s in range(1, _MOST_SPLITS + 1) if steps % s == 0 and programs * s <= 1.2 * _PROCESSORS]
    return sorted({1, *divisors[-1:]})
