"""Which tile a product of a two-sided layer uses: the measured one, or a rule's; and the candidates of a tuner."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from sonant.kernels.gpu import stages_within
from sonant.kernels.reference import Weight, parts_of
from sonant.kernels.tuning import Tile, find

_PROCESSORS = 132  # of an H100 or H200
_SHARED_BYTES = 227 << 10
_MOST_SPLITS = 8
_FILL = 3  # programs per processor are enough
_MOST_SPLIT_SUMS = 64  # accumulators in a thread's registers; adding up partial sums needs as many again


def shape_key(depth: int, columns: int, gated: bool, item_bytes: int) -> str:
    return f"{depth}x{columns}{'x2' if gated else ''} {8 * item_bytes}"


def tile_for(x: Tensor, weight: Weight, gated: bool) -> Tile:
    depth, item = x.shape[-1], parts_of(weight)[0].dtype.itemsize
    rows, columns = x.numel() // depth, weight.shape[0] // (2 if gated else 1)
    found = find("dual_ffn", shape_key(depth, columns, gated, item), rows, x.device)
    if found is not None:
        return found
    tile = rule(rows, depth, columns, gated, item)
    stage_bytes = shared_bytes(replace(tile, stages=1), gated, item)
    return replace(tile, stages=stages_within(x.device, tile.stages, stage_bytes))


def row_tiles(rows: int, block: int) -> int:
    """Enough tiles for any split: text, audio and padding each have at most one that is not full."""
    return min(rows, -(-rows // block) + 2)


def shared_bytes(tile: Tile, gated: bool, item_bytes: int) -> int:
    """Shared memory of all pipeline stages: rows of values, and weights, which may have fewer bits than those."""
    return tile.stages * tile.k * (tile.m * max(2, item_bytes) + (2 if gated else 1) * tile.n * item_bytes)


def rule(rows: int, depth: int, columns: int, gated: bool, item_bytes: int) -> Tile:
    """Up to 64 rows of a side fit in one tile, and only reading the weights takes time: two programs per processor have
    more loads in flight than one. With more rows tiles are large, since each reads the weights from L2 again. Values
    of four bytes have no tensor cores: tiles are small, or registers run out."""
    if item_bytes == 4:
        return Tile(16 if rows <= 16 else 32, 32, 32, warps=4, stages=2)
    if rows > 128:
        tile = Tile(128, 128, 64, warps=8, stages=4 if gated else 3)
    else:
        m = 16 if rows <= 16 else 32 if rows <= 32 else 64
        tile = Tile(m, 64, 64, warps=4, stages=4)
    return replace(tile, splits=_splits(tile, rows, depth, columns, gated)[-1])


def candidates(rows: int, depth: int, columns: int, gated: bool, item_bytes: int) -> Iterator[Tile]:
    """Tiles worth measuring, the rule's own first."""
    yield rule(rows, depth, columns, gated, item_bytes)
    shapes = ((64, 64), (64, 128), (128, 64), (256, 64))
    for m in (16, 32, 64, 128, 256):
        for n, k in shapes if rows <= 8 * m <= 8 * max(16, rows) else ():
            for warps in (4, 8):
                tile = Tile(m, n, k, warps, stages=1)
                # four warps share 64 columns on tensor cores; eight are for accumulators that four cannot hold
                if n < 16 * warps or not (8 if warps == 4 else 32) <= _sums(tile, gated) <= 128:
                    continue
                for stages in _stages(tile, gated, item_bytes):
                    for splits in _splits(tile, rows, depth, columns, gated):
                        yield replace(tile, stages=stages, splits=splits)


def _stages(tile: Tile, gated: bool, item_bytes: int) -> list[int]:
    """Numbers of pipeline stages: the most with which a processor holds one program, and two."""
    one = shared_bytes(replace(tile, stages=1), gated, item_bytes)
    most = {min(6, _SHARED_BYTES // programs // one) for programs in (1, 2)}
    return sorted(stages for stages in most if stages >= 2)


def _splits(tile: Tile, rows: int, depth: int, columns: int, gated: bool) -> list[int]:
    """Numbers of splits: 1 and, if programs are few, those that nearly fill the GPU, with rows on both sides."""
    programs = (-(-rows // tile.m) + 1) * -(-columns // tile.n)
    most = min(_MOST_SPLITS, -(-depth // tile.k) // 4, _FILL * _PROCESSORS // programs)
    if _sums(tile, gated) > _MOST_SPLIT_SUMS or most < 2:
        return [1]
    largest = 1 << (most.bit_length() - 1)  # powers of two only: each count is another kernel to compile
    return sorted({1, max(1, largest // 2), largest})


def _sums(tile: Tile, gated: bool) -> int:
    """Accumulators in each thread's registers."""
    return (2 if gated else 1) * tile.m * tile.n // (32 * tile.warps)
