"""Attention over a ring, from the fused projection to the heads' outputs, in one kernel.

One program serves one row and one key-value head: the queries of all heads that share it, at all new positions, are the
lines of one tile. Earlier keys are read in place from the ring, only those that are visible; new ones are added to it.
No slot is both read and written, thanks to the ring's size: the slots that new positions take hold positions that even
the first new one does not see. One kernel serves all numbers of new positions that its tile has room for, since a
prompt's sound may have any length.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels import reference
from sonant.kernels.reference import Heads, RingPlace
from sonant.kernels.sizes import next_power_of_2
from sonant.kernels.triton.norm_rope import gains, norm_rope, partner_of
from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior

_MOST_LINES = 64


@triton.jit(do_not_specialize=["steps", "window", "slots"])
def _ring_attention(
    qkv, q_weight, k_weight, cos, sin, ring, rows, positions, out, plane, row_stride, position_stride, rope_stride,
    steps, window, slots, eps, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, LINES: tl.constexpr, KEYS: tl.constexpr,
    SLOTS: tl.constexpr, NORM: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    launch_dependents(PDL)
    row, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    share: tl.constexpr = HEADS // KV_HEADS
    dtype: tl.constexpr = out.dtype.element_ty
    column, line, key, slot = tl.arange(0, DIM), tl.arange(0, LINES), tl.arange(0, KEYS), tl.arange(0, SLOTS)
    partner = partner_of(column, DIM)
    q_gain, q_partner_gain = gains(q_weight, DIM, NORM)
    k_gain, k_partner_gain = gains(k_weight, DIM, NORM)
    step, head = line // share, kv_head * share + line % share
    real, there = (line < share * steps)[:, None], (key < steps)[:, None]
    width: tl.constexpr = (HEADS + 2 * KV_HEADS) * DIM
    source = qkv + row * steps * width
    own = source + (step * width + head * DIM)[:, None]
    fresh = source + (key * width + (HEADS + kv_head) * DIM)[:, None]
    angle, key_angle = row * rope_stride + step * DIM, row * rope_stride + key * DIM
    wait_prior(PDL)
    first = tl.load(positions + row * position_stride).to(tl.int32)
    held = first - 1 - (first - 1 - slot + slots) % slots  # the last position before this call in each slot
    seen = (slot < slots) & (held >= 0) & (first - held < window)
    ring += tl.load(rows + row).to(tl.int64) * row_stride + kv_head * DIM
    past = ring + (slot * (KV_HEADS * DIM))[:, None] + column[None]
    past_keys = tl.load(past, mask=seen[:, None], other=0.0)
    past_values = tl.load(past + plane, mask=seen[:, None], other=0.0)
    keys = norm_rope(
        tl.load(fresh + column[None], mask=there, other=0.0), tl.load(fresh + partner[None], mask=there, other=0.0),
        k_gain[None], k_partner_gain[None], tl.load(cos + key_angle[:, None] + column[None], mask=there, other=0.0),
        tl.load(sin + key_angle[:, None] + column[None], mask=there, other=0.0), eps, DIM, NORM, dtype,
    )  # fmt: skip
    queries = norm_rope(
        tl.load(own + column[None], mask=real, other=0.0), tl.load(own + partner[None], mask=real, other=0.0),
        q_gain[None], q_partner_gain[None], tl.load(cos + angle[:, None] + column[None], mask=real, other=0.0),
        tl.load(sin + angle[:, None] + column[None], mask=real, other=0.0), eps, DIM, NORM, dtype,
    )  # fmt: skip
    values = tl.load(fresh + KV_HEADS * DIM + column[None], mask=there, other=0.0)
    far = tl.dot(queries, tl.trans(past_keys), input_precision=PRECISION) * scale
    far = tl.where(seen[None] & (first + step[:, None] - held[None] < window), far, float("-inf"))
    near = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * scale
    age = step[:, None] - key[None]
    near = tl.where((key < steps)[None] & (age >= 0) & (age < window), near, float("-inf"))
    most = tl.maximum(tl.max(far, 1), tl.max(near, 1))
    most = tl.where(most == float("-inf"), 0.0, most)  # only in lines that are no query
    far, near = tl.exp(far - most[:, None]), tl.exp(near - most[:, None])
    mixed = tl.dot(far.to(dtype), past_values, input_precision=PRECISION)
    mixed = tl.dot(near.to(dtype), values, mixed, input_precision=PRECISION)
    mixed /= tl.maximum(tl.sum(far, 1) + tl.sum(near, 1), 1.0)[:, None]  # a query's sum is at least 1
    # stores come last, since loads cannot be moved ahead of them
    to = ring + (((first + key) % slots) * (KV_HEADS * DIM))[:, None] + column[None]
    tl.store(to, keys, mask=there)
    tl.store(to + plane, values, mask=there)
    tl.store(out + ((row * steps + step) * HEADS + head)[:, None] * DIM + column[None], mixed.to(dtype), mask=real)


def ring_attention(qkv: Tensor, heads: Heads, ring: Tensor, place: RingPlace) -> Tensor:
    batch, steps, width = qkv.shape
    dim = width // (heads.heads + 2 * heads.kv_heads)
    lines = max(16, next_power_of_2(heads.heads // heads.kv_heads * steps))
    if lines > _MOST_LINES or dim & (dim - 1) or dim < 16:
        return reference.ring_attention(qkv, heads, ring, place)
    qkv, cos, sin = qkv.contiguous(), heads.cos.contiguous(), heads.sin.contiguous()
    assert ring.stride()[2:] == (heads.kv_heads * dim, dim, 1), "a row of the ring is not in one piece"
    out = qkv.new_empty(batch, steps, heads.heads, dim)
    norm = heads.q_weight is not None
    _ring_attention[(batch, heads.kv_heads)](
        qkv, heads.q_weight if norm else qkv, heads.k_weight if norm else qkv, cos, sin, ring, place.rows,
        place.positions, out, ring.stride(0), ring.stride(1), place.positions.stride(0),
        0 if len(cos) == 1 else steps * dim, steps, place.window, place.slots, heads.eps, dim**-0.5,
        HEADS=heads.heads, KV_HEADS=heads.kv_heads, DIM=dim, LINES=lines,
        KEYS=max(16, next_power_of_2(steps)), SLOTS=max(16, next_power_of_2(place.slots)), NORM=norm,
        PRECISION="ieee" if qkv.dtype.itemsize == 4 else "tf32", num_warps=4, **launch_options(qkv),
    )  # fmt: skip
    return out
