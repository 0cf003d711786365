# mypy: disable-error-code="assignment"
"""Matrix products with few rows: as fast as the weights can be read, with the norm before and the sum after inside.

One row is a sum over registers: a program takes some columns over the whole depth and has all its weights on the way
before it waits for the kernel that makes its input, so weights stream across kernel borders; the norm is worked out by
each program anew, since the row is in its registers anyway. More rows go to tensor cores (small_m_gemm.py), and from
there on, or where a measurement says so, the library's products win. Where nothing fits, the reference runs. A `tile`
is what a tuner tries; None: the best known.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels import reference
from sonant.kernels.triton import gemv_tile, norm, small_m_gemm
from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior
from sonant.kernels.triton.swiglu import swiglu
from sonant.kernels.tuning import Tile


@triton.jit
def _gemv(
    x, weight, gain, bias, residual, out, columns, depth, eps,
    NORM: tl.constexpr, GATED: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr, PDL: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    launch_dependents(PDL)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    known = column < columns
    dtype = out.dtype.element_ty
    start = weight + column.to(tl.int64)[:, None] * depth
    up_start = start + columns.to(tl.int64) * depth
    own, up, scales = (), (), ()  # a tile each; Triton knows no unpacking into a tuple
    for tile in tl.static_range(TILES):
        k = tile * BLOCK_K + tl.arange(0, BLOCK_K)
        mask = known[:, None] & (k < depth)[None]
        own = own + (tl.load(start + k[None], mask=mask, other=0.0),)  # noqa: RUF005
        if GATED:
            up = up + (tl.load(up_start + k[None], mask=mask, other=0.0),)  # noqa: RUF005
        if NORM:
            scales = scales + (tl.load(gain + k, mask=k < depth, other=0.0).to(tl.float32),)  # noqa: RUF005
    wait_prior(PDL)
    before = tl.zeros([BLOCK_N], dtype)
    if ADD:  # here, since at the end it would be waited for
        before = tl.load(residual + column, mask=known, other=0.0)
    values = ()
    square = tl.zeros([BLOCK_K], tl.float32)
    for tile in tl.static_range(TILES):
        k = tile * BLOCK_K + tl.arange(0, BLOCK_K)
        value = tl.load(x + k, mask=k < depth, other=0.0).to(tl.float32)
        values = values + (value,)  # noqa: RUF005
        square += value * value
    scale = tl.rsqrt(tl.sum(square, axis=0) / depth + eps)
    total, other = tl.zeros([BLOCK_N, BLOCK_K], tl.float32), tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    for tile in tl.static_range(TILES):
        value = values[tile]
        if NORM:
            # each result is rounded where the reference rounds it; the arithmetic between is float32
            value = (scales[tile] * (value * scale).to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
        total += own[tile].to(tl.float32) * value[None]
        if GATED:
            other += up[tile].to(tl.float32) * value[None]
    result = tl.sum(total, axis=1)
    if BIAS:
        result += tl.load(bias + column, mask=known, other=0.0).to(tl.float32)
    result = result.to(dtype)
    if GATED:
        gate = result.to(tl.float32)
        silu = (gate / (1 + tl.exp(-gate))).to(dtype).to(tl.float32)
        result = (silu * tl.sum(other, axis=1).to(dtype).to(tl.float32)).to(dtype)
    if ADD:
        result = (before.to(tl.float32) + result.to(tl.float32)).to(dtype)
    tl.store(out + column, result, mask=known)


def _product(
    x: Tensor, weight: Tensor, *, gain: Tensor | None = None, eps: float = 0.0, gated: bool = False,
    bias: Tensor | None = None, residual: Tensor | None = None, then: Tensor | None = None, tile: Tile | None = None,
) -> Tensor | None:  # fmt: skip
    """None: too many rows (with a bias two are), an unusual layout, or a shape in which the library is faster."""
    depth = weight.shape[1]
    columns = weight.shape[0] // 2 if gated else weight.shape[0]
    rows = x.numel() // depth
    if not weight.is_contiguous() or x.dtype != weight.dtype or (bias is not None and rows > 1):
        return None
    out = x.new_empty(*x.shape[:-1], columns)
    flat, wanted = x.contiguous().view(rows, depth), out.view(rows, columns)
    residual = None if residual is None else residual.contiguous()
    if rows == 1 and depth <= gemv_tile.DEEPEST:
        tile = tile or gemv_tile.tile_for(flat, columns, gated, norm=gain is not None)
        if tile.library:
            return None
        _launch_gemv(flat, weight, wanted, tile, gain, eps, gated, bias, residual)
        return out
    if small_m_gemm.fits(rows, depth) and small_m_gemm.product(
        flat, weight, wanted, gain=gain, eps=eps, gated=gated, residual=residual, then=then, tile=tile
    ):
        return out
    return None


def _launch_gemv(
    x: Tensor, weight: Tensor, out: Tensor, tile: Tile, gain: Tensor | None, eps: float, gated: bool,
    bias: Tensor | None, residual: Tensor | None,
) -> None:  # fmt: skip
    depth, columns = x.shape[1], out.shape[1]
    _gemv[(triton.cdiv(columns, tile.n),)](
        x, weight, weight if gain is None else gain, weight if bias is None else bias,
        out if residual is None else residual, out, columns, depth, eps,
        NORM=gain is not None, GATED=gated, BIAS=bias is not None, ADD=residual is not None,
        BLOCK_N=tile.n, BLOCK_K=tile.k, TILES=triton.cdiv(depth, tile.k), num_warps=tile.warps, **launch_options(x),
    )  # fmt: skip


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, tile: Tile | None = None) -> Tensor:
    out = _product(x, weight, bias=bias, tile=tile)
    return reference.linear(x, weight, bias) if out is None else out


def linear_add(
    x: Tensor, weight: Tensor, residual: Tensor, then: Tensor | None = None, *, tile: Tile | None = None
) -> Tensor:
    out = _product(x, weight, residual=residual, then=then, tile=tile)
    if out is not None:
        return out
    # into the residual itself: otherwise the library copies it first
    return residual.view(-1, weight.shape[0]).addmm_(x.flatten(0, -2), weight.T).view(residual.shape)


def norm_linear(
    x: Tensor, gain: Tensor, eps: float, weight: Tensor, then: Tensor | None = None, *, tile: Tile | None = None
) -> Tensor:
    out = _product(x, weight, gain=gain, eps=eps, then=then, tile=tile)
    return reference.linear(norm.rms_norm(x, gain, eps), weight) if out is None else out


def norm_gated(
    x: Tensor, gain: Tensor, eps: float, weight: Tensor, then: Tensor | None = None, *, tile: Tile | None = None
) -> Tensor:
    out = _product(x, weight, gain=gain, eps=eps, gated=True, then=then, tile=tile)
    return swiglu(reference.linear(norm.rms_norm(x, gain, eps), weight)) if out is None else out
