"""All that a guided flow does between two evaluations of its estimator, in one kernel; contracts are in the reference.

A program serves one row: norm and projection of its two sequences' last tokens, the two sums over the patch that
guidance needs, and the moved patch. Then it computes the patch's tokens. If rows are few, several programs share the
columns of these; each of them moves the patch itself, since that costs less than another kernel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.gpu import stages_within
from sonant.kernels.reference import FlowEnds, FlowGiven
from sonant.kernels.sizes import cdiv, next_power_of_2
from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior

_DEPTH = 128  # of the hidden width, per iteration
_COLUMNS = 128  # of the tokens, per iteration
_PROCESSORS = 132  # of an H100 or H200
_WARPS, _STAGES = 4, 4
_LEAST = tl.constexpr(1e-8)


@triton.jit
def _scaled(source, gain, k, known):
    """Values of tokens [T, K] from `source` on, times the norm's gain, and each token's sum of squares."""
    value = tl.load(source + k[None], mask=known[None], other=0.0)
    wide = value.to(tl.float32)
    return (wide * gain).to(value.dtype), tl.sum(wide * wide, axis=1)


@triton.jit
def _velocities(
    hidden, weight, bias, gain, guided_at, free_at, channel, width, channels, eps,
    BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Guided and free velocities [T, C] float32 of the tokens at these indices: norm and projection, rounded as in the
    reference. The norm's scale, a factor of the whole token, is applied at the end."""
    guided = tl.zeros([guided_at.shape[0], channel.shape[0]], tl.float32)
    free = guided
    guided_square = tl.zeros([guided_at.shape[0]], tl.float32)
    free_square = guided_square
    there = tl.minimum(channel, channels - 1)
    for start in range(0, width, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        known = k < width
        own = tl.load(weight + there[None] * width + k[:, None], mask=known[:, None], other=0.0)
        gains = tl.load(gain + k, mask=known, other=0.0).to(tl.float32)[None]
        value, square = _scaled(hidden + guided_at[:, None] * width, gains, k, known)
        guided = tl.dot(value, own, guided, input_precision=PRECISION)
        guided_square += square
        value, square = _scaled(hidden + free_at[:, None] * width, gains, k, known)
        free = tl.dot(value, own, free, input_precision=PRECISION)
        free_square += square
    dtype = hidden.dtype.element_ty
    onto = tl.load(bias + there).to(tl.float32)[None]
    guided = guided * tl.rsqrt(guided_square / width + eps)[:, None] + onto
    free = free * tl.rsqrt(free_square / width + eps)[:, None] + onto
    return guided.to(dtype).to(tl.float32), free.to(dtype).to(tl.float32)


@triton.jit
def _guided(x, guided, free, guidance, length):
    share = tl.sum(tl.sum(guided * free, 1), 0) / (tl.sum(tl.sum(free * free, 1), 0) + _LEAST)
    free = free * share
    return x - length * (free + guidance * (guided - free))


@triton.jit
def _tokens(
    patch, weight, bias, prefix, time, past, tokens, row, rows, step, column, width, channels,
    STEPS: tl.constexpr, PREFIX: tl.constexpr, LINES: tl.constexpr, CELLS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Store some columns of a row's tokens, guided and free: the patch's are computed, the others copied."""
    length: tl.constexpr = PREFIX + 1 + 2 * STEPS
    dtype: tl.constexpr = tokens.dtype.element_ty
    known = column < width
    channel = tl.arange(0, CELLS)
    start = weight + column[None] * channels + channel[:, None]
    own = tl.load(start, mask=known[None] & (channel < channels)[:, None], other=0.0)
    made = tl.dot(patch.to(dtype), own, input_precision=PRECISION)
    made = (made + tl.load(bias + column, mask=known, other=0.0).to(tl.float32)[None]).to(dtype)
    line = tl.arange(0, LINES)
    before, ahead = (line < PREFIX)[:, None], (line - PREFIX - 1)[:, None]
    told = tl.load(prefix + (row * PREFIX + line)[:, None] * width + column[None], mask=before & known[None], other=0.0)
    seen = (ahead >= 0) & (ahead < STEPS) & known[None]
    still = tl.load(past + (row * STEPS + ahead) * width + column[None], mask=seen, other=0.0)
    moment = tl.load(time + column, mask=known, other=0.0)[None]
    still = tl.where((line == PREFIX)[:, None], moment, still)
    guided = tokens + row * length * width + column[None]
    free = guided + rows.to(tl.int64) * length * width
    given = (line < PREFIX + 1 + STEPS)[:, None] & known[None]
    tl.store(guided + line[:, None] * width, tl.where(before, told, still), mask=given)
    tl.store(free + line[:, None] * width, tl.where(before, tl.zeros_like(told), still), mask=given)
    at, new = (PREFIX + 1 + STEPS + step)[:, None] * width, (step < STEPS)[:, None] & known[None]
    tl.store(guided + at, made, mask=new)
    tl.store(free + at, made, mask=new)


@triton.jit(do_not_specialize=["rows"])
def _flow_turn(
    x, hidden, guidance, out, in_weight, in_bias, gain, out_weight, out_bias, prefix, time, past, tokens,
    rows, width, channels, guidance_stride, length, eps,
    MOVE: tl.constexpr, OPEN: tl.constexpr, STEPS: tl.constexpr, PREFIX: tl.constexpr, LINES: tl.constexpr,
    TILE: tl.constexpr, CELLS: tl.constexpr, SHARE: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    launch_dependents(PDL)
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    step, channel = tl.arange(0, TILE), tl.arange(0, CELLS)
    inside = (step < STEPS)[:, None] & (channel < channels)[None]
    wait_prior(PDL)
    at = (row * STEPS + step[:, None]) * channels + channel[None]
    patch = tl.load(x + at, mask=inside, other=0.0)
    if MOVE:
        tokens_each: tl.constexpr = PREFIX + 1 + 2 * STEPS
        last = row * tokens_each + tokens_each - STEPS + tl.minimum(step, STEPS - 1)
        guided, free = _velocities(
            hidden, out_weight, out_bias, gain, last, last + rows * tokens_each, channel, width, channels, eps,
            BLOCK_K, PRECISION,
        )  # fmt: skip
        guided, free = tl.where(inside, guided, 0.0), tl.where(inside, free, 0.0)
        patch = _guided(patch, guided, free, tl.load(guidance + row * guidance_stride), length)
        if part == 0:
            tl.store(out + at, patch, mask=inside)
    if OPEN:
        for block in range(SHARE):
            column = (part * SHARE + block) * BLOCK_N + tl.arange(0, BLOCK_N)
            _tokens(
                patch, in_weight, in_bias, prefix, time, past, tokens, row, rows, step, column, width, channels,
                STEPS, PREFIX, LINES, CELLS, PRECISION,
            )  # fmt: skip


def _launch(
    x: Tensor, hidden: Tensor | None, length: float, time: Tensor | None, given: FlowGiven, ends: FlowEnds
) -> tuple[Tensor, Tensor]:
    """→ the moved patch (x itself without `hidden`), and its tokens (empty without `time`)."""
    rows, steps, channels = x.shape
    width, prefix = len(ends.in_weight), given.prefix.shape[1]
    x, past, told = x.contiguous(), given.past.contiguous(), given.prefix.contiguous()
    moved = x if hidden is None else torch.empty_like(x)
    tokens = told.new_empty(0 if time is None else 2 * rows, prefix + 1 + 2 * steps, width)
    blocks = cdiv(width, _COLUMNS)
    parts = 1 if time is None else min(blocks, 1 << max(0, (_PROCESSORS // rows).bit_length() - 1))
    tile, cells = max(16, next_power_of_2(steps)), max(16, next_power_of_2(channels))
    depth = min(_DEPTH, max(16, next_power_of_2(width)))
    stage_bytes = depth * (2 * tile + cells) * told.dtype.itemsize  # of both sequences' tokens, and of weights
    _flow_turn[(rows, parts)](
        x, tokens if hidden is None else hidden.contiguous(), given.guidance, moved,
        ends.in_weight, ends.in_bias, ends.gain, ends.out_weight, ends.out_bias,
        told, told if time is None else time.contiguous(), past, tokens,
        rows, width, channels, given.guidance.stride(0), length, ends.eps,
        MOVE=hidden is not None, OPEN=time is not None, STEPS=steps, PREFIX=prefix,
        LINES=next_power_of_2(prefix + 1 + steps), TILE=tile, CELLS=cells, SHARE=next_power_of_2(cdiv(blocks, parts)),
        BLOCK_K=depth, BLOCK_N=_COLUMNS,
        PRECISION="ieee" if told.dtype.itemsize == 4 else "tf32",
        num_warps=_WARPS, num_stages=stages_within(x.device, _STAGES, stage_bytes), **launch_options(x),
    )  # fmt: skip
    return moved, tokens


def flow_open(x: Tensor, time: Tensor, given: FlowGiven, ends: FlowEnds) -> Tensor:
    return _launch(x, None, 0.0, time, given, ends)[1]


def flow_move(x: Tensor, hidden: Tensor, length: float, given: FlowGiven, ends: FlowEnds) -> Tensor:
    return _launch(x, hidden, length, None, given, ends)[0]


def flow_turn(
    x: Tensor, hidden: Tensor, length: float, time: Tensor, given: FlowGiven, ends: FlowEnds
) -> tuple[Tensor, Tensor]:
    return _launch(x, hidden, length, time, given, ends)
