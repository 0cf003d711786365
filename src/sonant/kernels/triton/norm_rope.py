"""Prepares heads for attention inside a kernel: their norm, their rotary position, and the type of their cache."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def partner_of(column, DIM: tl.constexpr):
    """The column of the other half that a rotation mixes with each column."""
    return tl.where(column < DIM // 2, column + DIM // 2, column - DIM // 2)


@triton.jit
def gains(weight, DIM: tl.constexpr, NORM: tl.constexpr):
    """A norm's gains, by column and by partner; without a norm, placeholders."""
    column = tl.arange(0, DIM)
    gain, partner_gain = column, column
    if NORM:
        gain, partner_gain = tl.load(weight + column), tl.load(weight + partner_of(column, DIM))
    return gain, partner_gain


@triton.jit
def as_cached(value, dtype: tl.constexpr):
    """The value as a cache of that type holds it: what is too large for eight bits becomes the largest number."""
    if dtype == tl.float8e4nv:
        value = tl.clamp(value.to(tl.float32), -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
    return value.to(dtype)


@triton.jit
def _rounded(value, dtype: tl.constexpr):
    return value.to(dtype).to(tl.float32)


@triton.jit
def norm_rope(
    value, partner, gain, partner_gain, cos, sin, eps, DIM: tl.constexpr, NORM: tl.constexpr, dtype: tl.constexpr
):
    """Heads [DIM] or [N, DIM] and the same at their partners' columns → normed and rotated, in `dtype`.

    Each result is rounded where the reference rounds it; the arithmetic between is float32.
    """
    value, partner = value.to(tl.float32), partner.to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(value * value, axis=-1, keep_dims=True) / DIM + eps)
        value = _rounded(gain.to(tl.float32) * _rounded(value * scale, dtype), dtype)
        partner = _rounded(partner_gain.to(tl.float32) * _rounded(partner * scale, dtype), dtype)
    signed_sin = tl.where(tl.arange(0, DIM) < DIM // 2, -sin.to(tl.float32), sin.to(tl.float32))
    return (_rounded(value * cos.to(tl.float32), dtype) + _rounded(partner * signed_sin, dtype)).to(dtype)
