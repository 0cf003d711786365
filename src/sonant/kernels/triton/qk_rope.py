"""Per-head norm and rotary positions of queries and keys, straight from the fused projection, in one kernel.

Keys and values that belong in a cache are written there by the same kernel.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.reference import Place
from sonant.kernels.triton.early import begin, options, wait


@triton.jit
def _rounded(value, dtype):
    return value.to(dtype).to(tl.float32)


@triton.jit
def _qk_rope(
    qkv, q_weight, k_weight, cos, sin, slots, q, k, v, heads, kv_heads, eps,
    DIM: tl.constexpr, NORM: tl.constexpr, PLACED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    column = tl.arange(0, DIM)
    partner = tl.where(column < DIM // 2, column + DIM // 2, column - DIM // 2)
    source = qkv + (token * (heads + 2 * kv_heads) + head) * DIM
    dtype = q.dtype.element_ty
    wait(EARLY)
    at = token
    if PLACED:
        at = tl.load(slots + token)
    if head >= heads + kv_heads:
        tl.store(v + (at * kv_heads + head - heads - kv_heads) * DIM + column, tl.load(source + column))
    else:
        is_query = head < heads
        value = tl.load(source + column).to(tl.float32)
        other = tl.load(source + partner).to(tl.float32)
        if NORM:
            scale = tl.rsqrt(tl.sum(value * value, axis=0) / DIM + eps)
            if is_query:
                gain, partner_gain = tl.load(q_weight + column), tl.load(q_weight + partner)
            else:
                gain, partner_gain = tl.load(k_weight + column), tl.load(k_weight + partner)
            # each result is rounded where the reference rounds it; the arithmetic between is float32
            value = _rounded(gain.to(tl.float32) * _rounded(value * scale, dtype), dtype)
            other = _rounded(partner_gain.to(tl.float32) * _rounded(other * scale, dtype), dtype)
        turned = tl.where(column < DIM // 2, -other, other)
        c = tl.load(cos + token * DIM + column).to(tl.float32)
        s = tl.load(sin + token * DIM + column).to(tl.float32)
        result = (_rounded(value * c, dtype) + _rounded(turned * s, dtype)).to(dtype)
        if is_query:
            tl.store(q + (token * heads + head) * DIM + column, result)
        else:
            tl.store(k + (at * kv_heads + head - heads) * DIM + column, result)


def qk_rope(
    qkv: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    heads: int,
    kv_heads: int,
    eps: float,
    place: Place | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    batch, length = qkv.shape[:2]
    dim = qkv.shape[-1] // (heads + 2 * kv_heads)
    qkv = qkv.contiguous()
    q = qkv.new_empty(batch, length, heads, dim)
    k = v = qkv.new_empty(0)
    if place is None:
        k = qkv.new_empty(batch, length, kv_heads, dim)
        v = qkv.view(batch, length, -1, dim)[:, :, heads + kv_heads :]
    norm = q_weight is not None
    keys, values = (k, v) if place is None else place.cache
    _qk_rope[(batch * length, heads + (2 if place else 1) * kv_heads)](
        qkv,
        q_weight if norm else qkv,
        k_weight if norm else qkv,
        cos.contiguous(),
        sin.contiguous(),
        cos if place is None else place.slots,
        q,
        keys,
        values,
        heads,
        kv_heads,
        eps,
        DIM=dim,
        NORM=norm,
        PLACED=place is not None,
        num_warps=1,
        **options(qkv),
    )
    return q, k, v
