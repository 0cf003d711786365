"""A guided step of a flow in one kernel: two sums over a row, and what follows from them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior


@triton.jit(do_not_specialize=["rows"])
def _guided_step(
    x, velocity, guidance, out, rows, guidance_stride, length, CELLS: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    launch_dependents(PDL)
    row, cell = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = cell < CELLS
    at = row * CELLS + cell
    wait_prior(PDL)
    guided = tl.load(velocity + at, mask=inside, other=0.0).to(tl.float32)
    free = tl.load(velocity + rows * CELLS + at, mask=inside, other=0.0).to(tl.float32)
    free *= tl.sum(guided * free, axis=0) / (tl.sum(free * free, axis=0) + 1e-8)
    moved = free + tl.load(guidance + row * guidance_stride) * (guided - free)
    tl.store(out + at, tl.load(x + at, mask=inside, other=0.0) - length * moved, mask=inside)


def guided_step(x: Tensor, velocity: Tensor, guidance: Tensor, length: float) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    cells = x[0].numel()
    block = triton.next_power_of_2(cells)
    _guided_step[(len(x),)](
        x, velocity.contiguous(), guidance, out, len(x), guidance.stride(0), length,
        CELLS=cells, BLOCK=block, num_warps=max(1, min(8, block // 128)), **launch_options(x),
    )  # fmt: skip
    return out
