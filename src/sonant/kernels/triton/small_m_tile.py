"""Which tile a product with few rows uses: the measured one, or a rule's; and the candidates that a tuner measures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from torch import Tensor

from sonant.kernels.gpu import shared_room, stages_within
from sonant.kernels.sizes import next_power_of_2
from sonant.kernels.tuning import Tile, find

ROWS = 64  # above it the library's products win
WIDENED_ROWS = 16  # above it, with weights of eight bits, the input has eight bits too, if the GPU has such products
_LEAST_BLOCK = 16  # rows of a tile, however few there are
_DEPTH = 256  # of a tile, by the rule
_PROCESSORS = 132  # of an H100 or H200
_SHARED_BYTES = 227 << 10
_MOST_SPLITS = 24
# columns and depth of the tiles that a tuner tries, by rows
_TRIED: Mapping[int, tuple[tuple[int, int], ...]] = MappingProxyType(
    {
        16: ((16, 512), (16, 1024), (32, 256), (32, 512), (32, 1024), (64, 128), (64, 256), (128, 128)),
        32: (
            *((16, 512), (16, 1024), (32, 128), (32, 256), (32, 512), (32, 1024), (64, 128), (64, 256)),
            *((128, 64), (128, 128)),
        ),
        64: ((32, 128), (32, 256), (64, 64), (64, 128), (128, 64), (128, 128)),
    }
)


def shape_key(depth: int, columns: int, gated: bool, norm: bool, item_bytes: int) -> str:
    """The bits at the end are the weight's, since its bytes are what a product waits for."""
    return f"{depth}x{columns}{'x2' if gated else ''}{' norm' if norm else ''} {8 * item_bytes}"


def tile_for(x: Tensor, weight: Tensor, columns: int, gated: bool, norm: bool) -> Tile:
    """A neighbour's tile counts if it fits: measured with fewer rows, it may need too much shared memory with more."""
    rows, depth = x.shape
    item = weight.dtype.itemsize
    found = find("small_m", shape_key(depth, columns, gated, norm, item), max(rows, _LEAST_BLOCK), x.device)
    given = depth, max(_LEAST_BLOCK, next_power_of_2(rows)), 2 if gated else 1, item
    if found is not None and shared_bytes(found, *given) <= shared_room(x.device):
        return found
    tile = rule(rows, depth, columns, gated, item)
    return replace(tile, stages=stages_within(x.device, tile.stages, shared_bytes(replace(tile, stages=1), *given)))


def shared_bytes(tile: Tile, depth: int, block_m: int, planes: int, item_bytes: int) -> int:
    """Shared memory of all pipeline stages; where there is only one tile of the depth, there is one stage."""
    stages = tile.stages if depth // (max(1, tile.k) * tile.splits) > 1 else 1
    return stages * tile.k * (planes * tile.n * item_bytes + block_m * max(2, item_bytes))


def block_depth(depth: int, most: int = _DEPTH) -> int:
    """The largest power of two that divides the depth, up to `most`."""
    return min(most, depth & -depth)


def rule(rows: int, depth: int, columns: int, gated: bool, item_bytes: int) -> Tile:
    """Up to 16 rows every tile has a program of its own. With more, adding up partial sums costs more than it hides:
    there is about one program per processor, which won wherever it was measured. Four bytes have no tensor cores, and
    a deep tile of them would be thousands of instructions."""
    if item_bytes == 1:
        return _widened_rule(rows, depth, columns, gated)
    if rows <= 16 and item_bytes < 4:
        k = block_depth(depth)
        return Tile(0, 64, k, warps=4, stages=2, splits=depth // k)
    n, most = (64, 128 if gated or rows > 32 else 256) if item_bytes < 4 else (32, 32)
    k = block_depth(depth, most)
    splits = _nearest_splits(-(-columns // n), depth // k, _PROCESSORS)
    return Tile(0, n, k, warps=4, stages=2 if gated else 3, splits=splits)


def _widened_rule(rows: int, depth: int, columns: int, gated: bool) -> Tile:
    """One byte becomes two in registers, a whole tile at once: deeper tiles, or both halves of a gated one with many
    rows in four warps, spilled registers. More than 16 rows come here only if the input cannot have eight bits."""
    n, k, warps = (128, 64, 8) if gated and rows > 16 else (64, 128 if gated or rows > 16 else 256, 4)
    k = block_depth(depth, k)
    programs = 4 * _PROCESSORS if rows <= 16 else _PROCESSORS
    return Tile(0, n, k, warps, stages=3, splits=_nearest_splits(-(-columns // n), depth // k, programs))


def _nearest_splits(strips: int, tiles: int, programs: int) -> int:
    """The divisor of the depth's tiles with which there are nearly `programs` programs."""
    divisors = [s for s in range(1, min(tiles, _MOST_SPLITS) + 1) if tiles % s == 0]
    return min(divisors, key=lambda s: max(strips * s / programs, programs / (strips * s)))


def candidates(rows: int, depth: int, columns: int, gated: bool, item_bytes: int) -> Iterator[Tile]:
    """Tiles worth measuring, the rule's own first."""
    yield rule(rows, depth, columns, gated, item_bytes)
    block_m, planes = max(_LEAST_BLOCK, 1 << (rows - 1).bit_length()), 2 if gated else 1
    for n, k in ((n, block_depth(depth, most)) for n, most in _TRIED[block_m]):
        for splits in _splits(-(-columns // n), depth // k):
            for warps, fold in ((4, 1), (8, 1), (4, 4), (8, 8)):
                deep = depth // (k * splits)  # tiles, of which the first needs no shared memory
                stages = min(3 if k > 64 else 4, max(2, deep - 1))
                tile = Tile(0, n, k, warps, stages, splits, fold=fold)
                if _sensible(tile, depth, block_m, planes, item_bytes):
                    yield tile


def _splits(strips: int, tiles: int) -> list[int]:
    """Divisors of the depth's tiles with which about every second processor has a program, or each has one or two."""
    divisors = [s for s in range(1, min(tiles, _MOST_SPLITS) + 1) if tiles % s == 0]
    divisors = [s for s in divisors if 0.45 * _PROCESSORS <= strips * s <= 4 * _PROCESSORS]
    nearest = {min(divisors, key=lambda s: abs(strips * s - full * _PROCESSORS)) for full in (0.5, 1, 2) if divisors}
    return sorted(nearest)


def _sensible(tile: Tile, depth: int, block_m: int, planes: int, item_bytes: int) -> bool:
    threads = 32 * tile.warps
    # bytes of the first tile in each thread's registers, where every item takes at least two
    held = planes * tile.n * tile.k * max(2, item_bytes) // threads
    sums = planes * tile.n * block_m * tile.fold // threads
    shared = shared_bytes(tile, depth, block_m, planes, item_bytes)
    if not 64 <= held <= 256 or sums > 64 or shared > _SHARED_BYTES:
        return False
    if tile.fold > 1:
        return tile.n <= 32 and tile.k // tile.fold >= 64 and block_m <= 32
    return tile.n >= 32
