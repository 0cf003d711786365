"""One kernel from logits to a drawn id: bans, penalty, temperature, top-k, top-p and the draw.

Thresholds are found digit by digit over the order-preserving integer form of the scores, eight candidates in one
pass: eleven sums over a row that stays in registers, or six where scores have sixteen bits, cost far less than
sorting it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.reference import Bans
from sonant.kernels.triton.early import begin, options, wait

_DIGITS: tl.constexpr = tl.constexpr(8)


@triton.jit
def _ordered(score, BITS: tl.constexpr):
    """An unsigned integer of so many bits that orders as the float does."""
    bits = score.to(tl.uint32, bitcast=True)
    order = tl.where(bits >= 0x80000000, bits ^ 0xFFFFFFFF, bits | 0x80000000)
    return order >> (32 - BITS) if BITS < 32 else order


@triton.jit
def _threshold(order, weight, least, BITS: tl.constexpr):
    """The largest integer such that the weights of the scores at or above it still sum up to `least` or more."""
    digit = tl.arange(0, _DIGITS)
    found = tl.zeros([], tl.uint32)
    passes: tl.constexpr = (BITS + 2) // 3
    first: tl.constexpr = 1 << (BITS - 3 * (passes - 1))  # digits that the topmost bits make
    for turn in tl.static_range(passes):
        candidate = found + (digit.to(tl.uint32) << (3 * (passes - 1 - turn)))
        above = tl.sum(tl.where(order[None] >= candidate[:, None], weight[None], 0.0), axis=1)
        enough = (above >= least) & (digit < (first if turn == 0 else _DIGITS)) & (digit > 0)
        found += tl.sum(enough.to(tl.int32), axis=0).to(tl.uint32) << (3 * (passes - 1 - turn))
    return found


@triton.jit
def _sample(
    logits, uniform, greedy, temperature, top_k, top_p, out,
    seen, penalty, banned, stop_id, ban_stop, vocab,
    PENALIZE: tl.constexpr, BITS: tl.constexpr, EARLY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < vocab
    wait(EARLY)
    score = tl.load(logits + row * vocab + column, mask=inside, other=float("-inf")).to(tl.float32)
    if PENALIZE:
        factor = tl.load(penalty + row)
        was_drawn = tl.load(seen + row * vocab + column, mask=inside, other=0) != 0
        score = tl.where(was_drawn, tl.where(score > 0, score / factor, score * factor), score)
        never = tl.load(banned + column, mask=inside, other=1) != 0
        early = (tl.load(ban_stop + row) != 0) & (column == stop_id)
        score = tl.where(never | early, float("-inf"), score)
    best = tl.argmax(score, axis=0)
    order = _ordered(score, BITS)  # which no temperature changes
    score = tl.where(inside, score / tl.load(temperature + row), float("-inf"))
    weight = tl.where(inside, tl.exp(score - tl.max(score, axis=0)), 0.0)

    wanted = tl.load(top_k + row)
    wanted = tl.where((wanted <= 0) | (wanted > vocab), vocab, wanted)
    lowest = _threshold(order, inside.to(tl.float32), wanted.to(tl.float32), BITS)
    weight = tl.where(order >= lowest, weight, 0.0)

    share = tl.load(top_p + row)
    if share < 1:
        # a score stays if the weight above it is less than the share, and the highest always does
        lowest = _threshold(order, weight, share * tl.sum(weight, axis=0), BITS)
        weight = tl.where(order >= tl.minimum(lowest, tl.max(order, axis=0)), weight, 0.0)

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
        BITS=16 if logits.dtype is torch.bfloat16 and bans is None else 32,
        BLOCK=block,
        num_warps=max(1, min(16, block // 256)),
        **options(logits),
    )
    return out
