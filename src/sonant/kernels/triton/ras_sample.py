"""Draws a row of codes in one kernel: each codebook's draw, the look back at recent ones, and a second draw if due.

A program serves one codebook of one row. Its scores stay in registers, so drawing again costs one more cumulative sum,
and only where RAS asks for it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.reference import Ras, SamplingParams
from sonant.kernels.sizes import next_power_of_2
from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior
from sonant.kernels.triton.sample import draw, highest_of, invert, row_in_registers, score_bits


@triton.jit
def _ras_sample(
    logits, uniform, greedy, temperature, top_k, top_p, recent, length, repeats, out, books, vocab, first_special,
    uniform_stride, draw_stride, greedy_stride, temperature_stride, top_k_stride, top_p_stride,
    recent_stride, age_stride, book_stride, length_stride, repeats_stride,
    ROWS: tl.constexpr, WINDOW: tl.constexpr, BITS: tl.constexpr, PDL: tl.constexpr, BLOCK: tl.constexpr,
    PADDED: tl.constexpr,
):  # fmt: skip
    """`recent` has ROWS rows; WINDOW is the power of two that holds them. `draw_stride` is between a row's uniforms."""
    launch_dependents(PDL)
    row, book = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column, lane = tl.arange(0, BLOCK), tl.arange(0, WINDOW)
    inside = column < vocab
    wait_prior(PDL)
    at = row * books + book
    score = tl.load(logits + at * vocab + column, mask=inside, other=float("-inf")).to(tl.float32)
    looked_at = tl.load(length + row * length_stride)
    kept = tl.load(
        recent + row * recent_stride + lane * age_stride + book * book_stride,
        mask=(lane < ROWS) & (lane >= ROWS - looked_at), other=-1,
    )  # fmt: skip
    own = uniform + row * uniform_stride + book * draw_stride
    share_at, heat = tl.load(own), tl.load(temperature + row * temperature_stride)
    wanted, share = tl.load(top_k + row * top_k_stride), tl.load(top_p + row * top_p_stride)
    is_greedy = tl.load(greedy + row * greedy_stride) != 0
    highest, best = highest_of(score, vocab, PADDED)
    chosen = draw(score, highest, column, inside, vocab, share_at, heat, wanted, share, BITS, BLOCK)
    chosen = tl.where(is_greedy, best, chosen)
    count = tl.sum((kept == chosen).to(tl.int32), axis=0)
    count = tl.where(chosen < first_special, count, 0)
    if (looked_at > 0) & (count >= tl.load(repeats + row * repeats_stride)):
        weight = tl.where(inside, tl.exp(score - highest), 0.0)
        chosen = invert(weight, column, tl.load(own + books * draw_stride), BLOCK)
    tl.store(out + at, chosen.to(tl.int64))


def ras_sample(logits: Tensor, uniform: Tensor, params: SamplingParams, ras: Ras) -> Tensor:
    rows, books, vocab = logits.shape
    out = torch.empty(rows, books, dtype=torch.int64, device=logits.device)
    values = (params.greedy, params.temperature, params.top_k, params.top_p)
    recent, length, repeats, first_special = ras
    window = recent.shape[1]
    _ras_sample[(rows, books)](
        logits.contiguous(), uniform, *values, recent, length, repeats, out, books, vocab, first_special,
        *uniform.stride(), *(t.stride(0) for t in values), *recent.stride(), length.stride(0), repeats.stride(0),
        ROWS=window, WINDOW=next_power_of_2(window), BITS=score_bits(logits),
        **row_in_registers(vocab), **launch_options(logits),
    )  # fmt: skip
    return out
