"""SiLU of one half times the other, in one pass."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior


@triton.jit
def _swiglu(gate_up, out, width, PDL: tl.constexpr, BLOCK: tl.constexpr):
    launch_dependents(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    wait_prior(PDL)
    gate = tl.load(gate_up + row * 2 * width + column, mask=inside)
    up = tl.load(gate_up + row * 2 * width + width + column, mask=inside)
    wide = gate.to(tl.float32)
    silu = (wide / (1 + tl.exp(-wide))).to(gate.dtype).to(tl.float32)
    tl.store(out + row * width + column, (silu * up.to(tl.float32)).to(gate.dtype), mask=inside)


def swiglu(gate_up: Tensor) -> Tensor:
    gate_up = gate_up.contiguous()
    width = gate_up.shape[-1] // 2
    out = gate_up.new_empty(*gate_up.shape[:-1], width)
    block = min(1024, triton.next_power_of_2(width))
    grid = out.numel() // width, triton.cdiv(width, block)
    _swiglu[grid](gate_up, out, width, BLOCK=block, num_warps=4, **launch_options(gate_up))
    return out
