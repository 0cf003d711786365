"""One kernel from logits to a drawn id: bans, penalty, temperature, top-k, top-p and the draw.

Thresholds are found by bisection over the order-preserving integer form of the scores: 32 counts of a row that
stays in registers cost far less than sorting it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.reference import Bans


@triton.jit
def _ordered(score):
    """An integer that orders as the float does."""
    bits = score.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)


@triton.jit
def _sample(
    logits, uniform, greedy, temperature, top_k, top_p, out,
    seen, penalty, banned, stop_id, ban_stop, vocab,
    PENALIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < vocab
    score = tl.load(logits + row * vocab + column, mask=inside, other=float("-inf")).to(tl.float32)
    if PENALIZE:
        factor = tl.load(penalty + row)
        was_drawn = tl.load(seen + row * vocab + column, mask=inside, other=0) != 0
        score = tl.where(was_drawn, tl.where(score > 0, score / factor, score * factor), score)
        never = tl.load(banned + column, mask=inside, other=1) != 0
        early = (tl.load(ban_stop + row) != 0) & (column == stop_id)
        score = tl.where(never | early, float("-inf"), score)
    best = tl.argmax(score, axis=0)
    score = tl.where(inside, score / tl.load(temperature + row), float("-inf"))
    order = _ordered(score)
    highest = tl.max(score, axis=0)
    weight = tl.where(inside, tl.exp(score - highest), 0.0)

    wanted = tl.load(top_k + row)
    wanted = tl.where((wanted <= 0) | (wanted > vocab), vocab, wanted)
    low = tl.full([], -(2**31), tl.int64)  # at least `wanted` scores are at or above `low`
    high = tl.full([], 2**31, tl.int64)  # fewer are at or above `high`
    for _ in range(32):
        middle = (low + high) >> 1
        enough = tl.sum((inside & (order >= middle)).to(tl.int32), axis=0) >= wanted
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    weight = tl.where(order >= low, weight, 0.0)

    share = tl.load(top_p + row)
    if share < 1:
        # keep a score if the weight above it is less than the share: find the least such
        limit = share * tl.sum(weight, axis=0)
        under = low - 1  # the weight above `under` is the limit or more, or `under` lies below all kept scores
        over = tl.max(order, axis=0)
        for _ in range(33):
            middle = (under + over) >> 1
            fits = tl.sum(tl.where(order > middle, weight, 0.0), axis=0) < limit
            over = tl.where(fits, middle, over)
            under = tl.where(fits, under, middle)
        weight = tl.where(order >= over, weight, 0.0)

    running = tl.cumsum(weight, axis=0)
    target = tl.load(uniform + row) * tl.sum(weight, axis=0)
    drawn = tl.sum((inside & (running <= target)).to(tl.int32), axis=0)
    # rounding may leave the last running sum at the target: then the last id with weight is meant
    final = tl.max(tl.where(weight > 0, column, 0), axis=0)
    drawn = tl.minimum(drawn, final)
    chosen = tl.where(tl.load(greedy + row) != 0, best, drawn)
    tl.store(out + row, chosen.to(tl.int64))


def sample(
    logits: Tensor,
    uniform: Tensor,
    *,
    greedy: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    bans: Bans | None = None,
) -> Tensor:
    batch, vocab = logits.shape
    out = torch.empty(batch, dtype=torch.int64, device=logits.device)
    block = triton.next_power_of_2(vocab)
    _sample[(batch,)](
        logits.contiguous(),
        uniform.contiguous(),
        greedy.contiguous(),
        temperature.contiguous(),
        top_k.contiguous(),
        top_p.contiguous(),
        out,
        *(bans or (logits, logits, logits, -1, logits)),
        vocab,
        PENALIZE=bans is not None,
        BLOCK=block,
        num_warps=max(1, min(8, block // 512)),
    )
    return out
