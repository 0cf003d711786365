"""Which tile a product with one row runs in: the measured one, or a rule; and the candidates that a tuner measures.

A program's columns times the depth are its weights, all of which are in its threads' hands. More of them in fewer
programs start sooner; fewer in more leave room for the next kernel's. With a tile no deeper than a warp reads at once
(256) warps own columns, and meet no other at a barrier.
"""

from __future__ import annotations

from collections.abc import Iterator

import triton
from torch import Tensor

from sonant.kernels.triton.small_m_tile import shape_key
from sonant.kernels.tuning import Tile, find

DEEPEST = 8192
_VECTORS = 64  # elements of the weights in each thread's hands …
_TILED_VECTORS = 100  # … and where the depth is no power of two, so that it is cut into tiles of …
_TILE = 1024
_PROGRAMS = 512  # fewer would leave processors idle
_WARP_TILE = 256


def tile_for(x: Tensor, columns: int, gated: bool, norm: bool) -> Tile:
    depth, item = x.shape[1], x.dtype.itemsize
    return find("gemv", shape_key(depth, columns, gated, norm, item), 1, x.device) or rule(depth, columns, gated)


def rule(depth: int, columns: int, gated: bool) -> Tile:
    planes = 2 if gated else 1
    k = triton.next_power_of_2(depth)
    warps = 8 if k > 4096 else 4
    n = max(1, _VECTORS * 32 * warps // k // planes)
    if k != depth and depth % _TILE == 0:  # no lane is idle then
        k, warps = _TILE, 4
        most = min(_TILED_VECTORS * 32 * warps // (depth * planes), columns // _PROGRAMS)
        n = 1 << max(0, most.bit_length() - 1)
    return Tile(0, n, k, warps=warps)


def candidates(depth: int, columns: int, gated: bool) -> Iterator[Tile]:
    """Those worth a measurement; the rule's own comes first."""
    yield rule(depth, columns, gated)
    planes, whole = 2 if gated else 1, depth & -depth
    for k in sorted({min(whole, _WARP_TILE), min(whole, _TILE), min(whole, 2048)}):
        for warps in (4, 8, 16):
            for vectors in (48, 64, 96, 128):
                n = vectors * 32 * warps // (depth * planes)
                fits = n > 0 and n & (n - 1) == 0 and n * k >= 8 * 32 * warps
                if fits and 64 <= columns // n <= 2048:
                    yield Tile(0, n, k, warps=warps)
