"""Attention over a few positions that all see each other, from the fused projection to the heads' outputs.

One program serves one sequence and one key-value head: the queries of all heads that share it, at all positions, are
the lines of one tile, so that both products are whole tiles for tensor cores and keys are rotated once.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.reference import Heads
from sonant.kernels.sizes import next_power_of_2
from sonant.kernels.triton.norm_rope import gains, norm_rope, partner_of
from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior


@triton.jit
def _local_attention(
    qkv, q_weight, k_weight, cos, sin, out, rope_stride, eps, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, STEPS: tl.constexpr, LINES: tl.constexpr,
    KEYS: tl.constexpr, NORM: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    launch_dependents(PDL)
    row, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    share: tl.constexpr = HEADS // KV_HEADS
    dtype: tl.constexpr = out.dtype.element_ty
    column, line, key = tl.arange(0, DIM), tl.arange(0, LINES), tl.arange(0, KEYS)
    partner = partner_of(column, DIM)
    q_gain, q_partner_gain = gains(q_weight, DIM, NORM)
    k_gain, k_partner_gain = gains(k_weight, DIM, NORM)
    step, head = line // share, kv_head * share + line % share
    real, there = (line < share * STEPS)[:, None], (key < STEPS)[:, None]
    width: tl.constexpr = (HEADS + 2 * KV_HEADS) * DIM
    source = qkv + row * STEPS * width
    own = source + (step * width + head * DIM)[:, None]
    fresh = source + (key * width + (HEADS + kv_head) * DIM)[:, None]
    angle, key_angle = row * rope_stride + step * DIM, row * rope_stride + key * DIM
    wait_prior(PDL)
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
    scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * scale
    scores = tl.where((key < STEPS)[None], scores, float("-inf"))
    weight = tl.exp(scores - tl.max(scores, 1)[:, None])
    mixed = tl.dot(weight.to(dtype), values, input_precision=PRECISION) / tl.sum(weight, 1)[:, None]
    to = out + ((row * STEPS + step) * HEADS + head)[:, None] * DIM + column[None]
    tl.store(to, mixed.to(dtype), mask=real)


def local_attention(qkv: Tensor, heads: Heads) -> Tensor:
    batch, steps, width = qkv.shape
    dim = width // (heads.heads + 2 * heads.kv_heads)
    qkv, cos, sin = qkv.contiguous(), heads.cos.contiguous(), heads.sin.contiguous()
    out = qkv.new_empty(batch, steps, heads.heads, dim)
    norm = heads.q_weight is not None
    lines = max(16, next_power_of_2(heads.heads // heads.kv_heads * steps))
    _local_attention[(batch, heads.kv_heads)](
        qkv, heads.q_weight if norm else qkv, heads.k_weight if norm else qkv, cos, sin, out,
        0 if len(cos) == 1 else steps * dim, heads.eps, dim**-0.5,
        HEADS=heads.heads, KV_HEADS=heads.kv_heads, DIM=dim, STEPS=steps, LINES=lines,
        KEYS=max(16, next_power_of_2(steps)), NORM=norm, PRECISION="ieee" if qkv.dtype.itemsize == 4 else "tf32",
        num_warps=4 if lines < 128 else 8, **launch_options(qkv),
    )  # fmt: skip
    return out
