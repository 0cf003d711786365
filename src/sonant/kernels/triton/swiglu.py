"""SwiGLU, SiLU of one half times the other, in one pass, with the factor of a preceding norm if that was left to it."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.reference import Unscaled
from sonant.kernels.sizes import cdiv, next_power_of_2
from sonant.kernels.triton.norm import row_factor
from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior


@triton.jit
def _swiglu(
    gate_up, rows, out, width, hidden, eps,
    SCALE: tl.constexpr, PDL: tl.constexpr, BLOCK: tl.constexpr, ROW_BLOCK: tl.constexpr,
):  # fmt: skip
    launch_dependents(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    wait_prior(PDL)
    gate = tl.load(gate_up + row * 2 * width + column, mask=inside)
    up = tl.load(gate_up + row * 2 * width + width + column, mask=inside)
    if SCALE:
        factor = row_factor(rows, row, hidden, eps, ROW_BLOCK)
        gate = (gate.to(tl.float32) * factor).to(gate.dtype)
        up = (up.to(tl.float32) * factor).to(up.dtype)
    wide = gate.to(tl.float32)
    silu = (wide / (1 + tl.exp(-wide))).to(gate.dtype).to(tl.float32)
    tl.store(out + row * width + column, (silu * up.to(tl.float32)).to(gate.dtype), mask=inside)


def swiglu(gate_up: Tensor, unscaled: Unscaled | None = None) -> Tensor:
    gate_up = gate_up.contiguous()
    width = gate_up.shape[-1] // 2
    out = gate_up.new_empty(*gate_up.shape[:-1], width)
    block = min(1024, next_power_of_2(width))
    grid = out.numel() // width, cdiv(width, block)
    rows, eps = (gate_up, 0.0) if unscaled is None else (unscaled.rows.contiguous(), unscaled.eps)
    hidden = rows.shape[-1]
    _swiglu[grid](
        gate_up, rows, out, width, hidden, eps, SCALE=unscaled is not None, BLOCK=block,
        ROW_BLOCK=1 if unscaled is None else next_power_of_2(hidden), num_warps=4, **launch_options(gate_up),
    )  # fmt: skip
    return out
