"""Products with one row, and the middle of a layer over a frame's codebooks, in CUDA C++: the wrappers of
`source/row_product.cu` and `source/short_out.cu`.

Both serve where a tuner has found them faster (`Tile.cuda`): a tile has columns for a block and its warps. What they have
no kernel for (another type, depth or head size, an older GPU, no compiler) they leave to the caller.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor

from sonant.kernels.cuda.compiler import Program
from sonant.kernels.cuda.kernel import CudaKernel
from sonant.kernels.cuda.usable import is_usable
from sonant.kernels.reference import Heads
from sonant.kernels.tuning import Tile

_PROCESSORS = 132  # of an H100 or H200
_PIECE = 256  # of the depth, that a warp reads at once
_HELD = (32, 192)  # values of the weights that a lane may have in its registers
_PROGRAMS = (64, 2048)
_HEAD = 128
_ROW = struct.Struct("<5Qif")  # RowArgs
_SHORT = struct.Struct("<9Qq3i2f4x")  # ShortArgs


@cache
def _row_kernel(depth: int, columns: int, warps: int, norm: bool, gated: bool) -> CudaKernel:
    defines = {"DEPTH": depth, "COLUMNS": columns, "WARPS": warps, "NORM": int(norm), "GATED": int(gated)}
    return CudaKernel(Program("row_product.cu", defines), "row_product", _ROW, 2 * depth, threads=32 * warps)


@cache
def _short_kernel(columns: int, warps: int, share: int) -> CudaKernel:
    depth = warps * share * _HEAD
    defines = {"DEPTH": depth, "COLUMNS": columns, "WARPS": warps, "SHARE": share}
    own = 2 * (32 // share) * (2 * _HEAD + 16) + 4 * share * _HEAD  # of a warp, as short_out.cu has it
    return CudaKernel(
        Program("short_out.cu", defines), "short_out", _SHORT, 2 * depth + warps * own, threads=32 * warps
    )


def programs() -> Iterator[Program]:
    """That a wheel may bring: of the tiles which the rules below pick for the published sizes."""
    for depth, columns, gated, norm in _PUBLISHED:
        tile = rule(depth, columns, gated)
        yield _row_kernel(depth, tile.n // tile.warps, tile.warps, norm, gated).program
    yield _short_kernel(1, 8, 2).program


_PUBLISHED = (
    *((1024, 4096, False, True), (1024, 3072, True, True), (3072, 1024, False, False), (1024, 2048, False, True)),
    *((2048, 4096, False, True), (2048, 2048, False, False), (2048, 6144, True, True), (6144, 2048, False, False)),
    (2048, 3072, False, True),
)  # fmt: skip


def rule(depth: int, columns: int, gated: bool) -> Tile:
    """Eight warps with two pieces of 16 bytes of each 32 that a lane may hold."""
    most = max(1, 128 * 32 // (depth * (2 if gated else 1)))
    n = 1 << (most.bit_length() - 1)
    while n > 1 and columns < 8 * n * _PROCESSORS // 2:
        n //= 2
    return Tile(0, 8 * n, 0, warps=8, cuda=True)


def candidates(depth: int, columns: int, gated: bool) -> Iterator[Tile]:
    if depth % _PIECE:
        return
    for warps in (4, 8, 16):
        for n in (1, 2, 4):
            held = (2 if gated else 1) * n * depth // 32
            if _HELD[0] <= held <= _HELD[1] and _PROGRAMS[0] <= columns // (n * warps) <= _PROGRAMS[1]:
                yield Tile(0, n * warps, 0, warps=warps, cuda=True)


def product(
    x: Tensor, weight: Tensor, out: Tensor, tile: Tile, *, gain: Tensor | None, eps: float, gated: bool,
    residual: Tensor | None,
) -> bool:  # fmt: skip
    """Fill `out` [1, columns] with x [1, depth] times weight [columns (twice if gated), depth], and the rest. False:
    it cannot be done here, and nothing was."""
    depth, columns = x.shape[1], out.shape[1]
    given = [t for t in (x, weight, gain, residual) if t is not None]
    if depth % _PIECE or any(t.dtype != torch.bfloat16 or t.data_ptr() % 16 for t in given):
        return False
    kernel = _row_kernel(depth, tile.n // tile.warps, tile.warps, gain is not None, gated)
    if not is_usable(kernel, x.device):
        return False
    kernel.launch(
        x.device, (-(-columns // tile.n), 1, 1),
        x.data_ptr(), weight.data_ptr(), 0 if gain is None else gain.data_ptr(),
        0 if residual is None else residual.data_ptr(), out.data_ptr(), columns, eps,
    )  # fmt: skip
    return True


def short_out(
    qkv: Tensor, heads: Heads, cache_: Tensor, first: int, weight: Tensor, residual: Tensor, out: Tensor, tile: Tile,
    *, early: bool = True,
) -> bool:  # fmt: skip
    """`short_attention_add` of one row and one new position, to `out` [1, 1, columns]. False: it cannot be done here,
    and nothing was. `early` is for who measures: keys and values of earlier positions are read before the wait."""
    columns, (kv_heads, dim) = len(weight), cache_.shape[3:]
    share = heads.heads // kv_heads
    gains = [w for w in (heads.q_weight, heads.k_weight) if w is not None]
    given = (qkv, heads.cos, heads.sin, cache_, weight, residual, *gains)
    if any(t.dtype != torch.bfloat16 or t.data_ptr() % 16 for t in given) or cache_.stride(2) != kv_heads * dim:
        return False
    fits = dim == _HEAD and kv_heads == tile.warps and share in (1, 2, 4) and heads.heads == share * kv_heads
    if not fits or first >= 32 // share:
        return False
    kernel = _short_kernel(tile.n // tile.warps, kv_heads, share)
    if not is_usable(kernel, qkv.device):
        return False
    kernel.launch(
        qkv.device, (-(-columns // tile.n), 1, 1),
        qkv.data_ptr(), *([w.data_ptr() for w in gains] or [0, 0]), heads.cos.data_ptr(), heads.sin.data_ptr(),
        cache_.data_ptr(), weight.data_ptr(), residual.data_ptr(), out.data_ptr(), cache_.stride(0),
        columns, first, early, heads.eps, dim**-0.5 * math.log2(math.e),
    )  # fmt: skip
    return True
