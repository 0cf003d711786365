"""Which tile a product of eight bits on both sides runs in: the measured one, or a rule; and what a tuner measures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from sonant.kernels.tuning import Tile, find

_PROCESSORS = 132  # of an H100 or H200
_SHARED_BYTES = 227 << 10
_MOST_SPLITS = 8
_LEAST_DEPTH = 32  # that tensor cores take of eight bits at a time


def shape_key(depth: int, columns: int, gated: bool) -> str:
    return f"{depth}x{columns}{'x2' if gated else ''} 8"


def tile_for(rows: int, depth: int, columns: int, gated: bool, device: torch.device) -> Tile:
    found = find("scaled", shape_key(depth, columns, gated), rows, device)
    return found or rule(rows, depth, columns, gated)


def fits(tile: Tile, depth: int) -> bool:
    return tile.k >= _LEAST_DEPTH and depth % (tile.k * tile.splits) == 0


def rule(rows: int, depth: int, columns: int, gated: bool) -> Tile:
    """The largest tile of which there are enough for all processors, and where there are too few the depth is split."""
    k = min(128, depth & -depth)
    best = Tile(64, 64, k, warps=4, stages=4)
    for m, n, warps in ((128, 128, 8), (64, 128, 4)):
        if rows >= m and _programs(m, n // (2 if gated else 1), rows, columns) >= 0.7 * _PROCESSORS:
            best = Tile(m, n // (2 if gated else 1), k, warps=warps, stages=4)
            break
    return replace(best, splits=_splits(best, rows, depth, columns)[-1])


def candidates(rows: int, depth: int, columns: int, gated: bool) -> Iterator[Tile]:
    """Those worth a measurement; the rule's own comes first. Tensor cores take 64 rows at a time, however few there
    are."""
    yield rule(rows, depth, columns, gated)
    planes = 2 if gated else 1
    for m, wide in ((64, 32), (64, 64), (64, 128), (64, 256), (128, 64), (128, 128), (128, 256)):
        n, warps = wide // planes, 4 if m * wide <= 64 * 128 else 8
        for k in (64, 128, 256):
            for stages in (3, 4, 6):
                tile = Tile(m, n, k, warps, stages)
                if depth % k or stages * k * (m + wide) > _SHARED_BYTES or m >= max(128, 2 * rows):
                    continue
                yield from (replace(tile, splits=splits) for splits in _splits(tile, rows, depth, columns))


def _programs(m: int, n: int, rows: int, columns: int) -> int:
    return -(-rows // m) * -(-columns // n)


def _splits(tile: Tile, rows: int, depth: int, columns: int) -> list[int]:
    """1, and where programs are few what comes nearest to one for each processor."""
    programs, steps = _programs(tile.m, tile.n, rows, columns), depth // tile.k
    divisors = [s for s in range(1, _MOST_SPLITS + 1) if steps % s == 0 and programs * s <= 1.2 * _PROCESSORS]
    return sorted({1, *divisors[-1:]})
