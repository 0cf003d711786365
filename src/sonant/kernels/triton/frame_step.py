"""The end of a step that draws a frame of codes, in one kernel: twenty small ones would cost more than the work."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.reference import FrameCounters, FrameMemory, FrameTables
from sonant.kernels.sizes import cdiv, next_power_of_2
from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior


@triton.jit
def _frame_step(
    first, rest, status, position, frame, trailing_length, rows, codes, inputs, counters, trailing, table, offsets, pad,
    record, own_stride, text_stride, counters_stride, ring, tokens,
    RUNNING: tl.constexpr, GROUPS: tl.constexpr, GROUP_BLOCK: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """A program computes a part of one row's next input; a row's first program also stores all other results."""
    launch_dependents(PDL)
    b, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column, group = part * BLOCK + tl.arange(0, BLOCK), tl.arange(0, GROUP_BLOCK)
    known, real = column < WIDTH, group < GROUPS
    begin = tl.load(offsets + group, mask=real, other=0)
    empty = tl.load(pad + column, mask=known, other=0.0)
    wait_prior(PDL)
    row = tl.load(rows + b).to(tl.int64)
    number, now = tl.load(frame + b * own_stride), tl.load(status + b)
    drawn = tl.where(
        group == 0, tl.load(first + b), tl.load(rest + b * (GROUPS - 1) + group - 1, mask=real & (group > 0), other=0)
    )
    at = trailing + (row * tokens + tl.minimum(number, tokens - 1)) * WIDTH + column
    has_text = number < tl.load(trailing_length + b * text_stride)
    text = tl.load(at, mask=known & has_text, other=0.0)
    vectors = tl.load(
        table + (drawn + begin)[:, None] * WIDTH + column[None], mask=real[:, None] & known[None], other=0.0
    )
    dtype = inputs.dtype.element_ty
    spoken = tl.sum(vectors.to(tl.float32), axis=0).to(dtype).to(tl.float32)
    made = spoken + tl.where(has_text, text, empty).to(tl.float32)
    tl.store(inputs + row * WIDTH + column, made.to(dtype), mask=known)
    if part == 0:
        going = (now == RUNNING).to(tl.int32)
        kept = drawn.to(tl.int32)
        tl.store(codes + (row * ring + number % ring) * GROUPS + group, kept, mask=real)
        tl.store(record + b * (GROUPS + 1), now)
        tl.store(record + b * (GROUPS + 1) + 1 + group, kept, mask=real)
        target = counters + row * counters_stride
        tl.store(target, tl.load(position + b * own_stride) + going)
        tl.store(target + 1, number + going)
        tl.store(target + 2, now)


def frame_step(
    first: Tensor, rest: Tensor, status: Tensor, own: FrameCounters, rows: Tensor, memory: FrameMemory,
    tables: FrameTables, running: int,
) -> Tensor:  # fmt: skip
    batch, groups = len(first), rest.shape[1] + 1
    width = memory.input.shape[1]
    record = torch.empty(batch, groups + 1, dtype=torch.int32, device=first.device)
    assert own.position.stride(0) == own.frame.stride(0) and memory.counters.stride(1) == 1
    assert all(t.is_contiguous() for t in (memory.codes, memory.input, memory.trailing, tables.table))
    block = min(512, next_power_of_2(width))
    _frame_step[(batch, cdiv(width, block))](
        first.contiguous(), rest.contiguous(), status.contiguous(), *own, rows, *memory, *tables, record,
        own.frame.stride(0), own.trailing_length.stride(0), memory.counters.stride(0), memory.codes.shape[1],
        memory.trailing.shape[1],
        RUNNING=running, GROUPS=groups, GROUP_BLOCK=next_power_of_2(groups), WIDTH=width, BLOCK=block,
        num_warps=4, **launch_options(first),
    )  # fmt: skip
    return record
