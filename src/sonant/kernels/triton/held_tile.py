"""Tiles of products that hold all their weights (held_gemm.py) which are worth a measurement. There is no rule for
them: where nothing was measured, weights are streamed."""

from __future__ import annotations

from collections.abc import Iterator

from sonant.kernels.tuning import Tile

_PROCESSORS = 132  # of an H100 or H200
_LEAST_BLOCK = 16  # rows of a tile, however few there are
_MOST_BYTES = 256  # of the weights in each thread's hands, and of the input
_SHARED_BYTES = 227 << 10
_COLUMNS = (8, 16, 32, 64)
_SPLITS = (1, 2, 3, 4, 6, 8)


def candidates(rows: int, depth: int, columns: int, gated: bool, item_bytes: int) -> Iterator[Tile]:
    """From half a program for each processor to two: more of them start later than they would be done."""
    if item_bytes != 2:
        return
    planes = 2 if gated else 1
    for n in _COLUMNS:
        strips = -(-columns // n)
        for splits in (s for s in _SPLITS if depth % (256 * s) == 0):
            if 0.45 * _PROCESSORS <= strips * splits <= 2 * _PROCESSORS:
                yield from _shared_out(rows, depth // splits, n, planes, item_bytes, splits)


def _shared_out(rows: int, deep: int, n: int, planes: int, item_bytes: int, splits: int) -> Iterator[Tile]:
    """Of one program's `deep` × n weights: by how many warps, and whether these own columns or slices of the depth."""
    block_m = max(_LEAST_BLOCK, 1 << (rows - 1).bit_length())
    for warps in (4, 8):
        threads = 32 * warps
        if max(planes * n, block_m) * deep * item_bytes > _MOST_BYTES * threads:
            continue
        for fold in {1 if n >= 32 else warps, warps if block_m <= 32 else 1}:
            for k in sorted({min(1024, deep & -deep), 256}):
                cells = block_m * n * planes * fold
                shared = deep * (planes * n + block_m) * item_bytes if fold == 1 else 0
                if k // fold >= 32 and cells <= 64 * threads and shared <= _SHARED_BYTES:
                    yield Tile(0, n, k, warps, 1, splits, fold=fold, held=True)
