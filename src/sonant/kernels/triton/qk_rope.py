"""Per-head norm and rotary positions of queries and keys, straight from the fused projection, in one kernel.

Keys and values that belong in a cache are written there by the same kernel.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.reference import Heads, Place
from sonant.kernels.triton.norm_rope import as_cached, gains, norm_rope, partner_of
from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior


@triton.jit
def _qk_rope(
    qkv, q_weight, k_weight, cos, sin, slots, q, k, v, heads, kv_heads, eps,
    DIM: tl.constexpr, NORM: tl.constexpr, PLACED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    launch_dependents(PDL)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    column = tl.arange(0, DIM)
    partner = partner_of(column, DIM)
    source = qkv + (token * (heads + 2 * kv_heads) + head) * DIM
    gain, partner_gain = gains(tl.where(head < heads, q_weight, k_weight), DIM, NORM)
    wait_prior(PDL)
    at = token
    if PLACED:
        at = tl.load(slots + token)
    if head >= heads + kv_heads:
        kept = as_cached(tl.load(source + column), v.dtype.element_ty)
        tl.store(v + (at * kv_heads + head - heads - kv_heads) * DIM + column, kept)
    else:
        c, s = tl.load(cos + token * DIM + column), tl.load(sin + token * DIM + column)
        value, other = tl.load(source + column), tl.load(source + partner)
        result = norm_rope(value, other, gain, partner_gain, c, s, eps, DIM, NORM, q.dtype.element_ty)
        if head < heads:
            tl.store(q + (token * heads + head) * DIM + column, result)
        else:
            tl.store(k + (at * kv_heads + head - heads) * DIM + column, as_cached(result, k.dtype.element_ty))


def qk_rope(qkv: Tensor, heads: Heads, place: Place | None = None) -> tuple[Tensor, Tensor, Tensor]:
    batch, length = qkv.shape[:2]
    count, kv_count = heads.heads, heads.kv_heads
    dim = qkv.shape[-1] // (count + 2 * kv_count)
    qkv = qkv.contiguous()
    q = qkv.new_empty(batch, length, count, dim)
    k = v = qkv.new_empty(0)
    if place is None:
        k = qkv.new_empty(batch, length, kv_count, dim)
        v = qkv.view(batch, length, -1, dim)[:, :, count + kv_count :]
    norm = heads.q_weight is not None
    keys, values = (k, v) if place is None else place.cache
    _qk_rope[(batch * length, count + (2 if place else 1) * kv_count)](
        qkv, heads.q_weight if norm else qkv, heads.k_weight if norm else qkv,
        heads.cos.expand(batch, -1, -1, -1).contiguous(), heads.sin.expand(batch, -1, -1, -1).contiguous(),
        heads.cos if place is None else place.slots, q, keys, values, count, kv_count, heads.eps,
        DIM=dim, NORM=norm, PLACED=place is not None, num_warps=1, **launch_options(qkv),
    )  # fmt: skip
    return q, k, v
