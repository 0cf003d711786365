"""The middle of a layer over a frame's codebooks: attention, output projection and residual sum.

Of one row and one new position it is one kernel (kernels/cuda/source/short_out.cu), where a measurement says that this is
faster and the GPU can have it; otherwise two.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from sonant.kernels.cuda import row_product
from sonant.kernels.reference import Heads
from sonant.kernels.triton import gemv
from sonant.kernels.triton.short import short_attention
from sonant.kernels.tuning import LIBRARY, Tile, find


def shape_key(heads: int, kv_heads: int, dim: int, columns: int, item_bytes: int) -> str:
    return f"{heads}x{kv_heads}x{dim}x{columns} {8 * item_bytes}"


def tile_for(qkv: Tensor, heads: Heads, columns: int) -> Tile:
    dim = qkv.shape[-1] // (heads.heads + 2 * heads.kv_heads)
    shape = shape_key(heads.heads, heads.kv_heads, dim, columns, qkv.dtype.itemsize)
    return find("short_out", shape, 1, qkv.device) or LIBRARY


def candidates(kv_heads: int) -> Iterator[Tile]:
    """A warp for each key-value head, and columns for each of them."""
    for n in (1, 2):
        yield Tile(0, n * kv_heads, 0, warps=kv_heads, cuda=True)


def short_attention_add(
    qkv: Tensor, heads: Heads, cache: Tensor, first: int, weight: Tensor, residual: Tensor, *, tile: Tile | None = None
) -> Tensor:
    batch, steps, _ = qkv.shape
    if batch * steps == 1 and isinstance(weight, Tensor) and weight.is_contiguous():
        tile = tile or tile_for(qkv, heads, len(weight))
        out = qkv.new_empty(1, 1, len(weight))
        qkv, cos, sin, residual = (t.contiguous() for t in (qkv, heads.cos, heads.sin, residual))
        of = heads._replace(cos=cos, sin=sin)
        if tile.cuda and row_product.short_out(qkv, of, cache, first, weight, residual, out, tile):
            return out
    return gemv.linear_add(short_attention(qkv, heads, cache, first).flatten(2), weight, residual)
