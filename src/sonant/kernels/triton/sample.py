"""One kernel from logits to a drawn id: penalty, mask, temperature, top-k, top-p, the draw, and the id's table lookup.

Thresholds are found digit by digit over an order-preserving integer form of the scores, several candidates per pass,
with half as many passes for scores of sixteen bits: sums over a row that stays in registers cost far less than sorting
it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.reference import LogitMask, Lookup, SamplingParams
from sonant.kernels.sizes import next_power_of_2
from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior

_DIGITS: tl.constexpr = tl.constexpr(8)


@triton.jit
def _ordered(score, BITS: tl.constexpr):
    """An unsigned integer of BITS bits that has the same order as the float."""
    bits = score.to(tl.uint32, bitcast=True)
    order = tl.where(bits >= 0x80000000, bits ^ 0xFFFFFFFF, bits | 0x80000000)
    return order >> (32 - BITS) if BITS < 32 else order


@triton.jit
def _threshold(order, weight, least, BITS: tl.constexpr):
    """The largest integer such that the weights of the scores at or above it still sum up to `least` or more."""
    digit = tl.arange(0, _DIGITS)
    found = tl.zeros([], tl.uint32)
    passes: tl.constexpr = (BITS + 2) // 3
    first: tl.constexpr = 1 << (BITS - 3 * (passes - 1))  # values of the topmost digit, which may have fewer bits
    for level in tl.static_range(passes):
        candidate = found + (digit.to(tl.uint32) << (3 * (passes - 1 - level)))
        above = tl.sum(tl.where(order[None] >= candidate[:, None], weight[None], 0.0), axis=1)
        enough = (above >= least) & (digit < (first if level == 0 else _DIGITS)) & (digit > 0)
        found += tl.sum(enough.to(tl.int32), axis=0).to(tl.uint32) << (3 * (passes - 1 - level))
    return found


@triton.jit
def _kth(order, inside, wanted, BITS: tl.constexpr):
    """The largest integer that at least `wanted` scores reach. The counts of three candidates, sixteen bits each, are
    packed into one sum, since the cost of a pass is the barrier of all warps."""
    found = tl.zeros([], tl.uint32)
    for level in tl.static_range(BITS // 2):
        shift = BITS - 2 - 2 * level
        reached = tl.zeros(order.shape, tl.int64)
        for digit in tl.static_range(1, 4):
            reached += (inside & (order >= found + (digit << shift))).to(tl.int64) << (16 * digit - 16)
        counts = tl.sum(reached, axis=0)
        step = tl.zeros([], tl.uint32)
        for digit in tl.static_range(1, 4):
            step += (((counts >> (16 * digit - 16)) & 0xFFFF) >= wanted).to(tl.uint32)
        found += step << shift
    return found


@triton.jit
def highest_of(score, vocab, PADDED: tl.constexpr):
    """The highest score and its id. Where a score is NaN it is some id, but none of the columns past the last."""
    highest, best = tl.max(score, axis=0, return_indices=True)
    if PADDED:  # of NaN and minus infinity a reduction keeps whichever it meets last
        best = tl.minimum(best, vocab - 1)
    return highest, best


@triton.jit
def invert(weight, column, share, BLOCK: tl.constexpr):
    """The first id with weight at which the cumulative sum of the weights passes this share of their total. Threads add
    up in different orders, so that a later sum may be a rounding below an earlier one where weights are zero."""
    passed = (weight > 0) & (tl.cumsum(weight, axis=0) > share * tl.sum(weight, axis=0))
    drawn = tl.min(tl.where(passed, column, BLOCK), axis=0)
    # if rounding leaves even the last cumulative sum at the target, it is the last id with weight
    return tl.minimum(drawn, tl.max(tl.where(weight > 0, column, 0), axis=0))


@triton.jit
def draw(score, highest, column, inside, vocab, uniform, heat, wanted, share, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """Draw one id from the scores, of which `highest` is the largest. `uniform` and the values after it are the row's:
    the caller loads them along with the scores, since here each would be a wait of its own between two sums."""
    order = _ordered(score, BITS)  # temperature does not change it
    weight = tl.where(inside, tl.exp(score / heat - highest / heat), 0.0)

    lowest = _kth(order, inside, tl.where((wanted <= 0) | (wanted > vocab), vocab, wanted), BITS)
    weight = tl.where(order >= lowest, weight, 0.0)

    if share < 1:
        # a score is kept if the weight above it is less than the share; the highest is always kept
        lowest = _threshold(order, weight, share * tl.sum(weight, axis=0), BITS)
        weight = tl.where(order >= tl.minimum(lowest, tl.max(order, axis=0)), weight, 0.0)
    return invert(weight, column, uniform, BLOCK)


@triton.jit
def _sample(
    logits, uniform, greedy, temperature, top_k, top_p, out, seen, penalty, suppressed, stop_id, suppress_stop,
    seen_rows, vocab, table, fetched,
    uniform_stride, greedy_stride, temperature_stride, top_k_stride, top_p_stride, penalty_stride,
    MASKED: tl.constexpr, INDEXED: tl.constexpr, BITS: tl.constexpr, WIDTH: tl.constexpr, LINE: tl.constexpr,
    PDL: tl.constexpr, BLOCK: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    launch_dependents(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < vocab
    wait_prior(PDL)
    score = tl.load(logits + row * vocab + column, mask=inside, other=float("-inf")).to(tl.float32)
    at, heat = tl.load(uniform + row * uniform_stride), tl.load(temperature + row * temperature_stride)
    wanted, share = tl.load(top_k + row * top_k_stride), tl.load(top_p + row * top_p_stride)
    is_greedy = tl.load(greedy + row * greedy_stride) != 0
    if MASKED:
        factor = tl.load(penalty + row * penalty_stride)
        line = row
        if INDEXED:
            line = tl.load(seen_rows + row)
        was_drawn = tl.load(seen + line * vocab + column, mask=inside, other=0) != 0
        score = tl.where(was_drawn, tl.where(score > 0, score / factor, score * factor), score)
        never = tl.load(suppressed + column, mask=inside, other=1) != 0
        too_early = (tl.load(suppress_stop + row) != 0) & (column == stop_id)
        score = tl.where(never | too_early, float("-inf"), score)
    highest, best = highest_of(score, vocab, PADDED)
    drawn = draw(score, highest, column, inside, vocab, at, heat, wanted, share, BITS, BLOCK)
    chosen = tl.where(is_greedy, best, drawn)
    tl.store(out + row, chosen.to(tl.int64))
    if WIDTH > 0:
        place = tl.arange(0, LINE)
        line = tl.load(table + chosen.to(tl.int64) * WIDTH + place, mask=place < WIDTH)
        tl.store(fetched + row * WIDTH + place, line, mask=place < WIDTH)


def sample(
    logits: Tensor, uniform: Tensor, params: SamplingParams, mask: LogitMask | None = None, lookup: Lookup | None = None
) -> Tensor:
    batch, vocab = logits.shape
    out = torch.empty(batch, dtype=torch.int64, device=logits.device)
    values = (params.greedy, params.temperature, params.top_k, params.top_p)
    seen, penalty, suppressed, stop_id, suppress_stop, rows = mask or (logits, uniform, logits, -1, logits, None)
    table, fetched = (logits, logits) if lookup is None else (lookup.table.contiguous(), lookup.out)
    width = 0 if lookup is None else table.shape[1]
    _sample[(batch,)](
        logits.contiguous(), uniform, *values, out, seen, penalty, suppressed, stop_id, suppress_stop,
        logits if rows is None else rows, vocab, table, fetched, *(t.stride(0) for t in (uniform, *values, penalty)),
        MASKED=mask is not None, INDEXED=rows is not None, WIDTH=width, LINE=next_power_of_2(max(width, 1)),
        BITS=score_bits(logits) if mask is None else 32, **row_in_registers(vocab), **launch_options(logits),
    )  # fmt: skip
    return out


def score_bits(logits: Tensor) -> int:
    """How many bits tell the scores apart, as long as they are the logits unchanged."""
    return 16 if logits.dtype is torch.bfloat16 else 32


def row_in_registers(vocab: int) -> dict[str, int]:
    """Launch arguments of a kernel whose program holds a row of scores."""
    block = next_power_of_2(vocab)
    return {"BLOCK": block, "PADDED": block > vocab, "num_warps": max(1, min(16, block // 512))}
