"""Which tile a product of a two-sided layer runs in: the measured one, or a rule; and the candidates of a tuner."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from sonant.kernels.tuning import Tile, find

_PROCESSORS = 132  # of an H100 or H200
_SHARED_BYTES = 227 << 10
_MOST_SPLITS = 8
_FILL = 3  # programs to a processor that are enough
_MOST_SPLIT_SUMS = 64  # in a thread's registers: adding up partial sums needs as many again


def shape_key(depth: int, columns: int, gated: bool, item_bytes: int) -> str:
    return f"{depth}x{columns}{'x2' if gated else ''} {8 * item_bytes}"


def tile_for(x: Tensor, columns: int, gated: bool) -> Tile:
    """x: [rows, depth]."""
    rows, depth = x.shape
    item = x.dtype.itemsize
    found = find("dual_ffn", shape_key(depth, columns, gated, item), rows, x.device)
    return found or rule(rows, depth, columns, gated, item)


def row_tiles(rows: int, block: int, kinds: int) -> int:
    """Enough for any split among so many kinds of rows, each of which has at most one tile that is not full."""
    return min(rows, -(-rows // block) + kinds - 1)


def shared_bytes(tile: Tile, gated: bool, item_bytes: int) -> int:
    """What is on its way through shared memory."""
    return tile.stages * tile.k * (tile.m + (2 if gated else 1) * tile.n) * item_bytes


def rule(rows: int, depth: int, columns: int, gated: bool, item_bytes: int) -> Tile:
    """Up to 64 rows of a side fit in one tile, and reading the weights is all that counts: two programs to a processor
    have more of them on the way than one. With more rows tiles are large, since each reads the weights from L2 anew.
    Four bytes have no tensor cores: small tiles, or registers run out."""
    if item_bytes == 4:
        return Tile(16 if rows <= 16 else 32, 32, 32, warps=4, stages=2)
    if rows > 128:
        tile = Tile(128, 128, 64, warps=8, stages=4 if gated else 3)
    else:
        m = 16 if rows <= 16 else 32 if rows <= 32 else 64
        tile = Tile(m, 64, 64, warps=4, stages=4)
    return replace(tile, splits=_splits(tile, rows, depth, columns, gated)[-1])


def candidates(rows: int, depth: int, columns: int, gated: bool, item_bytes: int) -> Iterator[Tile]:
    """Those worth a measurement; the rule's own comes first."""
    yield rule(rows, depth, columns, gated, item_bytes)
    for m in (16, 32, 64, 128, 256):
        if not rows <= 8 * m or m > max(16, 2 * rows):
            continue
        for n, k in ((32, 128), (64, 64), (64, 128), (128, 64), (128, 128), (256, 64)):
            for warps, stages in ((4, 3), (4, 4), (4, 6), (8, 3), (8, 4)):
                tile = Tile(m, n, k, warps, stages)
                if _sensible(tile, depth, gated, item_bytes):
                    for splits in _splits(tile, rows, depth, columns, gated):
                        yield replace(tile, splits=splits)


def _sensible(tile: Tile, depth: int, gated: bool, item_bytes: int) -> bool:
    sums = _sums(tile, gated)
    # a warp has 16 columns at least, four of them together 64
    if not 8 <= sums <= 128 or tile.n < 16 * tile.warps or tile.k > depth:
        return False
    shared = shared_bytes(tile, gated, item_bytes)
    return 48 << 10 <= shared <= _SHARED_BYTES


def _splits(tile: Tile, rows: int, depth: int, columns: int, gated: bool) -> list[int]:
    """1, and where programs are few also what comes near filling the GPU, with the rows spread over two sides."""
    programs = row_tiles(rows, tile.m, 2) * -(-columns // tile.n)
    most = min(_MOST_SPLITS, -(-depth // tile.k) // 4, _FILL * _PROCESSORS // programs)
    if _sums(tile, gated) > _MOST_SPLIT_SUMS or most < 2:
        return [1]
    largest = 1 << (most.bit_length() - 1)  # powers of two only: each count is another kernel to compile
    return sorted({1, max(1, largest // 2), largest})


def _sums(tile: Tile, gated: bool) -> int:
    """In each thread's registers."""
    return (2 if gated else 1) * tile.m * tile.n // (32 * tile.warps)
