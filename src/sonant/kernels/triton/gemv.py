# mypy: disable-error-code="assignment"
"""Matrix products with few rows, as fast as the weights can be read; the norm before and the sum after are fused.

One row is summed in registers: a program takes some columns over the whole depth and issues the loads of all its
weights before it waits for the kernel that computes its input (PDL), so weights stream across kernel borders. Each
program recomputes the norm, since the row is in its registers anyway. More rows go to tensor cores (small_m_gemm.py);
with still more, or where a measurement says so, the library's products win, or those of tiled_gemm.py. Where nothing
fits, the reference runs. A `tile` is what a tuner tries with more than one row; None: the best known.

Weights may have eight bits: with few rows they are widened in registers, and each column's sum is multiplied by its
scale. With more than 16 rows the input has eight bits too (scaled_product.py), if the GPU has such products.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels import reference
from sonant.kernels.reference import QuantizedWeight, Unscaled, Weight, parts_of
from sonant.kernels.sizes import cdiv, next_power_of_2
from sonant.kernels.triton import norm, small_m_gemm, small_m_tile
from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior
from sonant.kernels.triton.scaled_product import Around, in_library, scaled_product
from sonant.kernels.triton.small_m_gemm import column_scales
from sonant.kernels.triton.swiglu import swiglu
from sonant.kernels.triton.tiled_gemm import tiled_gemm
from sonant.kernels.triton.tiled_tile import known_tile
from sonant.kernels.tuning import Tile

_DEEPEST = 8192
_VECTORS = 64  # elements of the weights in each thread's registers …
_TILED_VECTORS = 100  # … and where the depth is no power of two, so that it is cut into tiles
_TILE = 1024  # of that depth
_PROGRAMS = 512  # fewer would leave processors idle


@triton.jit
def _gemv(
    x, weight, scale, gain, bias, residual, out, columns, depth, eps,
    NORM: tl.constexpr, GATED: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr, PDL: tl.constexpr,
    SCALED: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    launch_dependents(PDL)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    known = column < columns
    dtype = out.dtype.element_ty
    start = weight + column.to(tl.int64)[:, None] * depth
    up_start = start + columns.to(tl.int64) * depth
    own, up, gains = (), (), ()  # a tensor for each tile; Triton cannot unpack into a tuple
    for tile in tl.static_range(TILES):
        k = tile * BLOCK_K + tl.arange(0, BLOCK_K)
        mask = known[:, None] & (k < depth)[None]
        own = own + (tl.load(start + k[None], mask=mask, other=0.0),)  # noqa: RUF005
        if GATED:
            up = up + (tl.load(up_start + k[None], mask=mask, other=0.0),)  # noqa: RUF005
        if NORM:
            gains = gains + (tl.load(gain + k, mask=k < depth, other=0.0).to(tl.float32),)  # noqa: RUF005
    own_scale, up_scale = column_scales(scale, column, columns, GATED, SCALED)
    wait_prior(PDL)
    values = ()
    square = tl.zeros([BLOCK_K], tl.float32)
    for tile in tl.static_range(TILES):
        k = tile * BLOCK_K + tl.arange(0, BLOCK_K)
        value = tl.load(x + k, mask=k < depth, other=0.0).to(tl.float32)
        values = values + (value,)  # noqa: RUF005
        square += value * value
    factor = tl.rsqrt(tl.sum(square, axis=0) / depth + eps)
    total, other = tl.zeros([BLOCK_N, BLOCK_K], tl.float32), tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    for tile in tl.static_range(TILES):
        value = values[tile]
        if NORM:
            # each result is rounded where the reference rounds it; the arithmetic between is float32
            value = (gains[tile] * (value * factor).to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
        total += own[tile].to(tl.float32) * value[None]
        if GATED:
            other += up[tile].to(tl.float32) * value[None]
    result = tl.sum(total, axis=1)
    if SCALED:
        result *= own_scale
    if BIAS:
        result += tl.load(bias + column, mask=known, other=0.0).to(tl.float32)
    result = result.to(dtype)
    if GATED:
        gate = result.to(tl.float32)
        silu = (gate / (1 + tl.exp(-gate))).to(dtype).to(tl.float32)
        beside = tl.sum(other, axis=1)
        if SCALED:
            beside *= up_scale
        result = (silu * beside.to(dtype).to(tl.float32)).to(dtype)
    if ADD:
        before = tl.load(residual + column, mask=known, other=0.0).to(tl.float32)
        result = (before + result.to(tl.float32)).to(dtype)
    tl.store(out + column, result, mask=known)


def product_of_few(
    x: Tensor, weight: Weight, *, gain: Tensor | None = None, eps: float = 0.0, gated: bool = False,
    bias: Tensor | None = None, residual: Tensor | None = None, tile: Tile | None = None,
) -> Tensor | None:  # fmt: skip
    """None: too many rows (with a bias, more than one), an unusual layout, or a shape where the library is faster."""
    depth = weight.shape[1]
    columns = weight.shape[0] // 2 if gated else weight.shape[0]
    rows = x.numel() // depth
    if not weight.is_contiguous() or not _same_kind(x, weight) or (bias is not None and rows > 1):
        return None
    out = x.new_empty(*x.shape[:-1], columns)
    flat, wanted = x.contiguous().view(rows, depth), out.view(rows, columns)
    residual = None if residual is None else residual.contiguous()
    if rows == 1 and depth <= _DEEPEST:
        _launch_gemv(flat, weight, wanted, gain, eps, gated, bias, residual)
        return out
    if isinstance(weight, QuantizedWeight) and rows > small_m_tile.WIDENED_ROWS and in_library(flat, weight):
        return None
    if (
        small_m_gemm.fits(rows, depth)
        and not (tile and tile.m)
        and small_m_gemm.product(flat, weight, wanted, gain=gain, eps=eps, gated=gated, residual=residual, tile=tile)
    ):
        return out
    return None


def tiled(
    x: Tensor, weight: Weight, *, residual: Tensor | None = None, gated: bool = False, tile: Tile | None = None
) -> Tensor | None:
    """The product of tiled_gemm.py; None: it does not take this weight, or was not measured to be faster here."""
    if isinstance(weight, QuantizedWeight) or not weight.is_contiguous() or x.dtype != weight.dtype:
        return None
    tile = tile or known_tile(x, weight, gated)
    if tile is None:
        return None
    columns = len(weight) // (2 if gated else 1)
    out = x.new_empty(*x.shape[:-1], columns)
    residual = None if residual is None else residual.contiguous().view(-1, columns)
    flat = x.contiguous().view(-1, x.shape[-1])
    tiled_gemm(flat, weight, out.view(-1, columns), tile, residual=residual, gated=gated)
    return out


def _plain(x: Tensor, weight: Tensor) -> Tensor:
    out = tiled(x, weight)
    return reference.linear(x, weight) if out is None else out


def _of_many(x: Tensor, tile: Tile | None) -> Tile | None:
    """The tuner's tile; None if it is one for the kernels for few rows."""
    return tile if tile is None or tile.m or tile.library else None


def _same_kind(x: Tensor, weight: Weight) -> bool:
    """Whether the dtypes go together, as a quantised weight does with any x."""
    return isinstance(weight, QuantizedWeight) or x.dtype == weight.dtype


def _launch_gemv(
    x: Tensor, weight: Weight, out: Tensor, gain: Tensor | None, eps: float, gated: bool, bias: Tensor | None,
    residual: Tensor | None,
) -> None:  # fmt: skip
    values, scale = parts_of(weight)
    depth, columns = x.shape[1], out.shape[1]
    planes = 2 if gated else 1
    block_k, tiles = next_power_of_2(depth), 1
    warps = 8 if block_k > 4096 else 4
    block_n = max(1, _VECTORS * 32 * warps // block_k // planes)
    if block_k != depth and depth % _TILE == 0:  # no lane is idle then
        block_k, tiles, warps = _TILE, depth // _TILE, 4
        most = min(_TILED_VECTORS * 32 * warps // (depth * planes), columns // _PROGRAMS)
        block_n = 1 << max(0, most.bit_length() - 1)
    _gemv[(cdiv(columns, block_n),)](
        x, values, x if scale is None else scale, x if gain is None else gain, x if bias is None else bias,
        out if residual is None else residual, out, columns, depth, eps,
        NORM=gain is not None, GATED=gated, BIAS=bias is not None, ADD=residual is not None, SCALED=scale is not None,
        BLOCK_N=block_n, BLOCK_K=block_k, TILES=tiles, num_warps=warps, **launch_options(x),
    )  # fmt: skip


def linear(x: Tensor, weight: Weight, bias: Tensor | None = None, *, tile: Tile | None = None) -> Tensor:
    out = tiled(x, weight) if bias is None and tile is None else None
    out = product_of_few(x, weight, bias=bias, tile=tile) if out is None else out
    if out is not None:
        return out
    if isinstance(weight, QuantizedWeight):
        return scaled_product(x, weight, Around(bias=bias), _of_many(x, tile))
    return reference.linear(x, weight, bias)


def linear_add(x: Tensor, weight: Weight, residual: Tensor, *, tile: Tile | None = None) -> Tensor:
    if isinstance(weight, QuantizedWeight) and x.dtype == weight.values.dtype:
        return scaled_product(x, weight, Around(residual=residual), _of_many(x, tile))
    out = tiled(x, weight, residual=residual) if tile is None else None
    out = product_of_few(x, weight, residual=residual, tile=tile) if out is None else out
    if out is not None:
        return out
    if isinstance(weight, QuantizedWeight):
        return scaled_product(x, weight, Around(residual=residual), _of_many(x, tile))
    # into the residual itself: otherwise the library copies it first
    return residual.view(-1, weight.shape[0]).addmm_(x.flatten(0, -2), weight.T).view(residual.shape)


def norm_linear(x: Tensor, gain: Tensor, eps: float, weight: Weight, *, tile: Tile | None = None) -> Tensor:
    out = product_of_few(x, weight, gain=gain, eps=eps, tile=tile)
    if out is not None:
        return out
    if isinstance(weight, QuantizedWeight):
        return scaled_product(x, weight, Around(norm=(gain, eps)), _of_many(x, tile))
    return _plain(norm.rms_norm(x, gain, eps), weight)


def unscaled_linear(x: Tensor, weight: Weight) -> Tensor | None:
    """The product without its norm; None where `norm_linear` needs no kernel of its own for the norm."""
    columns, depth = weight.shape
    rows = x.numel() // depth
    if isinstance(weight, QuantizedWeight) or not weight.is_contiguous() or x.dtype != weight.dtype:
        return None
    if rows == 1 and depth <= _DEEPEST:
        return None
    if small_m_gemm.fits(rows, depth):
        tile = small_m_tile.tile_for(x.reshape(rows, depth), weight, columns, gated=False, norm=True)
        if not tile.library:
            return None
    return _plain(x, weight)


def norm_gated(
    x: Tensor, gain: Tensor, eps: float, weight: Weight, folded: bool = False, *, tile: Tile | None = None
) -> Tensor:
    out = product_of_few(x, weight, gain=gain, eps=eps, gated=True, tile=tile)
    if out is not None:
        return out
    if isinstance(weight, QuantizedWeight):
        return scaled_product(x, weight, Around(norm=(gain, eps), gated=True), _of_many(x, tile))
    if folded and known_tile(x, weight, gated=True) is None:
        return swiglu(reference.linear(x, weight), Unscaled(x, eps))
    normed = norm.rms_norm(x, gain, eps)
    out = tiled(normed, weight, gated=True)
    return swiglu(reference.linear(normed, weight)) if out is None else out
