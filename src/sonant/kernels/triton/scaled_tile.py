"""Which tile a product of eight bits on both sides runs in: the measured one, or a rule; and what a tuner measures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from sonant.kernels.tuning import Tile, find

FEW_ROWS = 64  # with which a product is mostly waiting for its weights: the first are fetched before it may begin
_PROCESSORS = 132  # of an H100 or H200
_SHARED_BYTES = 227 << 10
_MOST_SPLITS = 8
_LEAST_DEPTH = 32  # that tensor cores take of eight bits at a time
_SPLIT_DEPTH = 3072  # under it sums over programs cost more than they hide
_WIDTHS = (64, 32), (64, 64), (64, 128), (64, 256), (128, 64), (128, 128), (128, 256)  # of tiles that are tried


def shape_key(depth: int, columns: int, gated: bool) -> str:
    return f"{depth}x{columns}{'x2' if gated else ''} 8"


def tile_for(rows: int, depth: int, columns: int, gated: bool, device: torch.device) -> Tile:
    found = find("scaled", shape_key(depth, columns, gated), rows, device)
    return found or rule(rows, depth, columns, gated)


def fits(tile: Tile, depth: int) -> bool:
    return tile.k >= _LEAST_DEPTH and depth % (tile.k * tile.splits) == 0


def rule(rows: int, depth: int, columns: int, gated: bool) -> Tile:
    """The largest tile of which there are enough for all processors, as what was measured has it; where there are too
    few even of the narrowest, a great depth is split."""
    for m, wide in ((128, 128), (64, 128), (64, 64), (64, 32)):
        if _suits(m, rows) and _programs(m, wide // _planes(gated), rows, columns) >= 0.7 * _PROCESSORS:
            break
    k = min(256 if wide <= 64 else 128, depth & -depth)
    stages = next(stages for stages in (6, 4, 3) if _fits_memory(m, wide, k, stages, rows))
    tile = Tile(m, wide // _planes(gated), k, warps=8 if m * wide > 64 * 128 else 4, stages=stages)
    return replace(tile, splits=_splits(tile, rows, depth, columns)[-1]) if depth >= _SPLIT_DEPTH else tile


def candidates(rows: int, depth: int, columns: int, gated: bool) -> Iterator[Tile]:
    """Those worth a measurement; the rule's own comes first."""
    yield rule(rows, depth, columns, gated)
    for m, wide in _WIDTHS:
        n, warps = wide // _planes(gated), 4 if m * wide <= 64 * 128 else 8
        for k in (64, 128, 256):
            for stages in (3, 4, 6):
                tile = Tile(m, n, k, warps, stages)
                if depth % k == 0 and _suits(m, rows) and _fits_memory(m, wide, k, stages, rows):
                    yield from (replace(tile, splits=splits) for splits in _splits(tile, rows, depth, columns))


def _planes(gated: bool) -> int:
    return 2 if gated else 1


def _suits(m: int, rows: int) -> bool:
    """Whether less than half of a tile's rows are idle. Tensor cores take 64 at a time, however few there are."""
    return m == 64 or m < 2 * rows


def _fits_memory(m: int, wide: int, k: int, stages: int, rows: int) -> bool:
    """With few rows there is one stage more: what is fetched before the product may begin."""
    return (stages + (rows <= FEW_ROWS)) * k * (m + wide) <= _SHARED_BYTES


def _programs(m: int, n: int, rows: int, columns: int) -> int:
    return -(-rows // m) * -(-columns // n)


def _splits(tile: Tile, rows: int, depth: int, columns: int) -> list[int]:
    """1, and where programs are few what comes nearest to one for each processor."""
    programs, steps = _programs(tile.m, tile.n, rows, columns), depth // tile.k
    divisors = [s for s in range(1, _MOST_SPLITS + 1) if steps % s == 0 and programs * s <= 1.2 * _PROCESSORS]
    return sorted({1, *divisors[-1:]})
