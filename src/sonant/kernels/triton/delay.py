"""A step of a delay pattern in one kernel: a dozen small ones would cost more than the arithmetic."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.reference import DelayPattern, RowCounters
from sonant.kernels.sizes import next_power_of_2
from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior


@triton.jit
def _delay_step(
    drawn, position, last, ending, status, frame_limit, rows, ring, counters, record,
    own_stride, limit_stride, counters_stride, length,
    BOS: tl.constexpr, EOS: tl.constexpr, BEFORE: tl.constexpr,
    RUNNING: tl.constexpr, STOPPED: tl.constexpr, CAPPED: tl.constexpr, PRIMING: tl.constexpr,
    COUNT: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    launch_dependents(PDL)
    b = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    real = k < COUNT
    wait_prior(PDL)
    row = tl.load(rows + b).to(tl.int64)
    number = tl.load(last + b * own_stride)
    ends = tl.load(ending + b * own_stride)
    was = tl.load(status + b * own_stride)
    codes = tl.load(drawn + b * COUNT + k, mask=real, other=EOS).to(tl.int32)
    codes = tl.where(k > number, BOS, codes)
    codes = tl.where(k < ends, EOS, codes)
    is_eos = real & (codes == EOS)
    found = tl.sum(is_eos.to(tl.int32), axis=0)
    is_capped = number - (COUNT - 1) >= tl.load(frame_limit + b * limit_stride)
    now = tl.where(was == RUNNING, tl.where(found == COUNT, STOPPED, tl.where(is_capped, CAPPED, RUNNING)), was)
    told = tl.where((now == RUNNING) & (number < COUNT - 1), PRIMING, now)
    own_ring = ring + row * length * COUNT
    at = (number + k - (COUNT - 2) + BEFORE) % length
    earlier = tl.load(own_ring + at * COUNT + k, mask=k < COUNT - 1, other=0)
    frame = tl.minimum(tl.where(k < COUNT - 1, earlier, codes), BOS - 1)
    tl.store(record + b * (COUNT + 1), told)
    tl.store(record + b * (COUNT + 1) + 1 + k, frame, mask=real)
    tl.store(own_ring + ((number + 1 + BEFORE) % length) * COUNT + k, codes, mask=real)
    going = (now == RUNNING).to(tl.int32)
    target = counters + row * counters_stride
    tl.store(target, tl.load(position + b * own_stride) + going)
    tl.store(target + 1, number + going)
    tl.store(target + 2, ends + going * ((ends > 0) | (found > 0)).to(tl.int32))
    tl.store(target + 3, now)


def delay_step(
    drawn: Tensor, own: RowCounters, rows: Tensor, ring: Tensor, counters: Tensor, pattern: DelayPattern
) -> Tensor:
    batch, count = drawn.shape
    record = torch.empty(batch, count + 1, dtype=torch.int32, device=drawn.device)
    strides = {t.stride(0) for t in own[:4]}
    assert len(strides) == 1 and counters.stride(1) == 1 and ring.is_contiguous()
    _delay_step[(batch,)](
        drawn.contiguous(), *own, rows, ring, counters, record,
        strides.pop(), own.frame_limit.stride(0), counters.stride(0), ring.shape[1],
        BOS=pattern.bos, EOS=pattern.eos, BEFORE=pattern.before,
        RUNNING=pattern.statuses.running, STOPPED=pattern.statuses.stopped, CAPPED=pattern.statuses.capped,
        PRIMING=pattern.statuses.priming, COUNT=count, BLOCK=next_power_of_2(count),
        num_warps=1, **launch_options(drawn),
    )  # fmt: skip
    return record
