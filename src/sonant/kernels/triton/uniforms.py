"""Counter-based random numbers: ten rounds of Philox for a row's codebooks, in one kernel instead of ninety."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior


@triton.jit
def _uniforms(
    seed, frame, out, seed_stride, frame_stride, COUNT: tl.constexpr, PDL: tl.constexpr, BLOCK: tl.constexpr
):
    launch_dependents(PDL)
    row = tl.program_id(0)
    wait_prior(PDL)
    low = tl.load(seed + row * seed_stride).to(tl.uint32, bitcast=True).to(tl.uint64)
    high = tl.load(seed + row * seed_stride + 1).to(tl.uint32, bitcast=True).to(tl.uint64)
    index = tl.arange(0, BLOCK)
    zero = index * 0
    at = zero + tl.load(frame + row * frame_stride).to(tl.int32)
    bits, _, _, _ = tl.philox((high << 32) | low, index, at, zero, zero, 10)
    value = (bits.to(tl.uint32, bitcast=True) >> 9).to(tl.float32) * (2.0**-23)
    tl.store(out + row * COUNT + index, value, mask=index < COUNT)


def uniforms(seed: Tensor, frame: Tensor, count: int) -> Tensor:
    out = torch.empty(seed.shape[0], count, dtype=torch.float32, device=seed.device)
    _uniforms[(seed.shape[0],)](
        seed, frame, out, seed.stride(0), frame.stride(0),
        COUNT=count, BLOCK=triton.next_power_of_2(count), num_warps=1, **launch_options(seed),
    )  # fmt: skip
    return out
