"""Counter-based random numbers: ten rounds of Philox for a row's codebooks, in one kernel instead of ninety.

Normally distributed numbers are computed from pairs of them in the same kernel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.sizes import next_power_of_2
from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior


@triton.jit
def _draw(seed, frame, row, index, seed_stride, frame_stride):
    low = tl.load(seed + row * seed_stride).to(tl.uint32, bitcast=True).to(tl.uint64)
    high = tl.load(seed + row * seed_stride + 1).to(tl.uint32, bitcast=True).to(tl.uint64)
    zero = index * 0
    at = zero + tl.load(frame + row * frame_stride).to(tl.int32)
    bits, _, _, _ = tl.philox((high << 32) | low, index, at, zero, zero, 10)
    return (bits.to(tl.uint32, bitcast=True) >> 9).to(tl.float32) * (2.0**-23)


@triton.jit
def _uniforms(seed, frame, out, seed_stride, frame_stride, COUNT: tl.constexpr, PDL: tl.constexpr, BLOCK: tl.constexpr):
    launch_dependents(PDL)
    row = tl.program_id(0)
    wait_prior(PDL)
    index = tl.arange(0, BLOCK)
    value = _draw(seed, frame, row, index, seed_stride, frame_stride)
    tl.store(out + row * COUNT + index, value, mask=index < COUNT)


@triton.jit
def _normals(
    seed, frame, scale, out, seed_stride, frame_stride, scale_stride,
    PAIRS: tl.constexpr, PDL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    launch_dependents(PDL)
    row, index = tl.program_id(0), tl.arange(0, BLOCK)
    wait_prior(PDL)
    # 1 minus a draw is exact, so its logarithm is that of the reference
    radius = tl.sqrt(-2 * tl.log(1 - _draw(seed, frame, row, index, seed_stride, frame_stride)))
    angle = 6.283185307179586 * _draw(seed, frame, row, index + PAIRS, seed_stride, frame_stride)
    by = tl.load(scale + row * scale_stride)
    to = out + row * 2 * PAIRS + index
    tl.store(to, by * (radius * tl.cos(angle)), mask=index < PAIRS)
    tl.store(to + PAIRS, by * (radius * tl.sin(angle)), mask=index < PAIRS)


def uniforms(seed: Tensor, frame: Tensor, count: int) -> Tensor:
    out = torch.empty(seed.shape[0], count, dtype=torch.float32, device=seed.device)
    _uniforms[(seed.shape[0],)](
        seed, frame, out, seed.stride(0), frame.stride(0),
        COUNT=count, BLOCK=next_power_of_2(count), num_warps=1, **launch_options(seed),
    )  # fmt: skip
    return out


def normals(seed: Tensor, frame: Tensor, scale: Tensor, count: int) -> Tensor:
    out = torch.empty(seed.shape[0], count, dtype=torch.float32, device=seed.device)
    pairs = count // 2
    _normals[(seed.shape[0],)](
        seed, frame, scale, out, seed.stride(0), frame.stride(0), scale.stride(0),
        PAIRS=pairs, BLOCK=next_power_of_2(pairs), num_warps=1, **launch_options(seed),
    )  # fmt: skip
    return out
