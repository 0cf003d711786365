"""Which tile a convolution uses: the measured one, or a rule's; and the candidates that a tuner measures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from sonant.kernels.sizes import next_power_of_2
from sonant.kernels.tuning import Tile, find

_PROCESSORS = 132  # of an H100 or H200
_MOST_SPLITS = 16
_MOST_SPLIT_SUMS = 64  # accumulators in a thread's registers; adding up partial sums needs as many again
_SHARED_BYTES = 227 << 10


def shape_key(inputs: int, columns: int, taps: int, item_bytes: int) -> str:
    return f"{inputs}x{columns}x{taps}x{8 * item_bytes}"


def tile_for(x: Tensor, columns: int, taps: int) -> Tile:
    batch, steps, inputs = x.shape
    rows, item = batch * steps, x.dtype.itemsize
    found = find("conv", shape_key(inputs, columns, taps, item), rows, x.device)
    return found or rule(rows, inputs, columns, taps, item)


def depth_of(inputs: int) -> int:
    """64 if that divides the inputs: all of a tap's tiles are then full."""
    return 64 if inputs % 64 == 0 else max(16, min(32, next_power_of_2(inputs)))


def rule(rows: int, inputs: int, columns: int, taps: int, item_bytes: int) -> Tile:
    k = depth_of(inputs)
    if item_bytes == 4:  # no tensor cores: small tiles, or registers run out
        return Tile(64, 32, min(k, 32), warps=4, stages=2)
    narrow = columns % 3 != 0
    if columns <= 32:
        tile = Tile(128, max(16, next_power_of_2(columns)), k, warps=4, stages=4)
    elif narrow:
        tile = Tile(128, min(128, next_power_of_2(columns)), k, warps=8, stages=3)
    else:
        tile = Tile(128, 128 if columns % 192 == 0 else 64, k, warps=8, stages=3, wide=True)
    if _programs(tile, rows, columns) >= _PROCESSORS:
        return tile
    small = Tile(64, min(tile.n, 64), k, warps=4, stages=4, wide=tile.wide)
    return replace(small, splits=_splits(small, rows, columns, taps * -(-inputs // k))[-1])


def candidates(rows: int, inputs: int, columns: int, taps: int, item_bytes: int) -> Iterator[Tile]:
    """Tiles worth measuring, the rule's own first."""
    yield rule(rows, inputs, columns, taps, item_bytes)
    k = depth_of(inputs)
    shapes = [(m, n, wide) for m in (64, 128, 256) for n in (64, 128) for wide in (False, True)]
    if columns < 64:
        shapes = [(m, next_power_of_2(max(16, columns)), False) for m in (64, 128, 256)]
    elif columns % 256 == 0:
        shapes.append((128, 256, False))
    for m, n, wide in shapes:
        for warps, stages in ((4, 4), (8, 3), (8, 4), (16, 3)):
            tile = Tile(m, n, k, warps, stages, wide=wide)
            if _sensible(tile, rows, columns, item_bytes):
                for splits in _splits(tile, rows, columns, taps * -(-inputs // k)):
                    yield replace(tile, splits=splits)


def _sensible(tile: Tile, rows: int, columns: int, item_bytes: int) -> bool:
    cells = tile.m * tile.width
    if not 8 <= cells // (32 * tile.warps) <= 128:  # accumulators in each thread's registers
        return False
    if tile.warps == 16 and cells < 256 * 128:  # so many warps share nothing but the inputs that they read
        return False
    if tile.m > 64 and rows <= 8 * tile.m:
        return False
    if tile.stages * tile.k * (tile.m + tile.width) * item_bytes > _SHARED_BYTES:
        return False
    return columns < 64 or -(-columns // tile.width) * tile.width <= 4 * columns / 3


def _splits(tile: Tile, rows: int, columns: int, k_tiles: int) -> list[int]:
    """Numbers of splits: 1 and, if that leaves processors idle, those that fill the GPU about once and twice."""
    programs = _programs(tile, rows, columns)
    most = min(_MOST_SPLITS, k_tiles // 4, 2 * _PROCESSORS // programs)
    if programs >= _PROCESSORS or tile.m * tile.width > _MOST_SPLIT_SUMS * 32 * tile.warps or most < 2:
        return [1]
    largest = 1 << (most.bit_length() - 1)  # powers of two only: each count is another kernel to compile
    return sorted({1, max(1, largest // 2), largest})


def _programs(tile: Tile, rows: int, columns: int) -> int:
    return -(-rows // tile.m) * -(-columns // tile.width)
