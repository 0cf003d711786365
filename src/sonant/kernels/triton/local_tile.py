"""Which tile the middle of a local layer uses: the measured one, or a rule's; and what a tuner measures."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from sonant.kernels.reference import Heads
from sonant.kernels.tuning import LIBRARY, Tile, find

ROWS = 64  # of a tile, whose scores are square; with more rows it is two kernels
_LEAST_ROWS = 16
_PROCESSORS = 132  # of an H100 or H200
_COLUMNS = (16, 32, 64, 128)
_MOST_HELD_BYTES = 384  # of weights in each thread's registers


def shape_key(heads: int, kv_heads: int, dim: int, columns: int, item_bytes: int) -> str:
    return f"{heads}x{kv_heads}x{dim}x{columns} {8 * item_bytes}"


def tile_for(qkv: Tensor, heads: Heads, weight: Tensor) -> Tile:
    batch, steps, width = qkv.shape
    rows, columns, item = batch * steps, len(weight), weight.dtype.itemsize
    dim = width // (heads.heads + 2 * heads.kv_heads)
    shape = shape_key(heads.heads, heads.kv_heads, dim, columns, item)
    if rows > ROWS:
        return LIBRARY
    found = find("local_out", shape, max(rows, _LEAST_ROWS), qkv.device)
    return found or rule(heads.heads, heads.kv_heads, columns, item)


def fits(tile: Tile, heads: Heads) -> bool:
    """Whether the splits divide the heads so that all heads of a program share their keys."""
    return heads.heads % tile.splits == 0 and tile.splits % heads.kv_heads == 0


def rule(heads: int, kv_heads: int, columns: int, item_bytes: int) -> Tile:
    """About one program per processor. Four bytes have no tensor cores: a wide tile would take too many steps."""
    n = 64 if item_bytes < 4 else 16
    splits = min(_splits(heads, kv_heads), key=lambda s: abs(-(-columns // n) * s - _PROCESSORS))
    return Tile(0, n, 0, warps=4, stages=1, splits=splits)


def candidates(heads: int, kv_heads: int, dim: int, columns: int, item_bytes: int) -> Iterator[Tile]:
    """Tiles worth measuring, the rule's own first."""
    yield rule(heads, kv_heads, columns, item_bytes)
    for n in _COLUMNS:
        for splits in _splits(heads, kv_heads):
            programs = -(-columns // n) * splits
            for warps in (4, 8):
                held = n * heads // splits * dim * item_bytes // (32 * warps)
                if 0.7 * _PROCESSORS <= programs <= 2 * _PROCESSORS and held <= _MOST_HELD_BYTES:
                    yield Tile(0, n, 0, warps=warps, stages=1, splits=splits)


def _splits(heads: int, kv_heads: int) -> list[int]:
    return [s for s in range(kv_heads, heads + 1, kv_heads) if heads % s == 0]
