"""The end of a step that makes patches, in one kernel: two dozen small ones would cost more than the arithmetic."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.reference import PatchCounters, PatchMemory, PatchStatuses
from sonant.kernels.sizes import next_power_of_2
from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior


@triton.jit
def _patch_step(
    patch, embedded, stop, position, frame, min_len, frame_limit, status, rows, patches, before, inputs, counters,
    record, own_stride, min_stride, limit_stride, counters_stride, ring,
    RUNNING: tl.constexpr, CAPPED: tl.constexpr, LAST: tl.constexpr, CELLS: tl.constexpr, CELL_BLOCK: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH_BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    launch_dependents(PDL)
    b = tl.program_id(0).to(tl.int64)
    cell, column = tl.arange(0, CELL_BLOCK), tl.arange(0, WIDTH_BLOCK)
    inside, known = cell < CELLS, column < WIDTH
    wait_prior(PDL)
    row = tl.load(rows + b).to(tl.int64)
    number, was = tl.load(frame + b * own_stride), tl.load(status + b * own_stride)
    stops = tl.load(stop + 2 * b + 1) > tl.load(stop + 2 * b)
    ends = stops & (number > tl.load(min_len + b * min_stride))
    is_capped = number >= tl.load(frame_limit + b * limit_stride)
    now = tl.where(was == RUNNING, tl.where(is_capped, CAPPED, tl.where(ends, LAST, RUNNING)), was)
    value = tl.load(patch + b * CELLS + cell, mask=inside, other=0.0)
    given = tl.load(embedded + b * WIDTH + column, mask=known, other=0.0)
    going = (now == RUNNING).to(tl.int32)
    made = going + ((was == RUNNING) & (now == LAST)).to(tl.int32)
    moved = tl.load(position + b * own_stride) + going
    tl.store(patches + (row * ring + number % ring) * CELLS + cell, value, mask=inside)
    tl.store(before + row * CELLS + cell, value, mask=inside)
    tl.store(inputs + row * WIDTH + column, given, mask=known)
    tl.store(record + b * (CELLS + 1), now)
    tl.store(record + b * (CELLS + 1) + 1 + cell, value.to(tl.int32, bitcast=True), mask=inside)
    target = counters + row * counters_stride
    tl.store(target, moved)
    tl.store(target + 1, number + made)
    tl.store(target + 2, 0)
    tl.store(target + 3, now)


def patch_step(
    patch: Tensor,
    embedded: Tensor,
    stop: Tensor,
    own: PatchCounters,
    rows: Tensor,
    memory: PatchMemory,
    statuses: PatchStatuses,
) -> Tensor:
    batch, cells, width = len(patch), patch[0].numel(), embedded.shape[1]
    record = torch.empty(batch, cells + 1, dtype=torch.int32, device=patch.device)
    strides = {t.stride(0) for t in (own.position, own.frame, own.status)}
    assert len(strides) == 1 and memory.counters.stride(1) == 1
    assert all(t.is_contiguous() for t in memory[:3]) and embedded.dtype == memory.input.dtype
    _patch_step[(batch,)](
        patch.contiguous(), embedded.contiguous(), stop.contiguous(), *own, rows, *memory, record,
        strides.pop(), own.min_len.stride(0), own.frame_limit.stride(0), memory.counters.stride(0),
        memory.patches.shape[1],
        RUNNING=statuses.running, CAPPED=statuses.capped, LAST=statuses.last,
        CELLS=cells, CELL_BLOCK=next_power_of_2(cells), WIDTH=width, WIDTH_BLOCK=next_power_of_2(width),
        num_warps=4, **launch_options(patch),
    )  # fmt: skip
    return record
