"""A causal convolution to a single channel, like a codec's last: only its inputs take time, so they are read once.

As a matrix product it would have one column, and every tap would read the inputs again. Here the taps are the columns:
each line of inputs is multiplied by all of them at once, and a result is the sum along a diagonal, one tap from each of
as many lines.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.sizes import cdiv
from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior

_LINES = 128  # of inputs, for a program; its results are taps - 1 fewer
_COLUMNS = 16
_BLOCK_K = 32
_WARPS, _STAGES = 4, 3


@triton.jit
def values(fresh_start, past_start, fresh, k, inside, PAST: tl.constexpr, EVEN: tl.constexpr):
    """Inputs [M, K]: this piece's where `fresh`, else the past's, which are zeros without a past."""
    if PAST:
        start = tl.where(fresh, fresh_start, past_start)
        if EVEN:
            return tl.load(start[:, None] + k[None])
        return tl.load(start[:, None] + k[None], mask=inside[None], other=0.0)
    return tl.load(fresh_start[:, None] + k[None], mask=fresh[:, None] & inside[None], other=0.0)


@triton.jit(do_not_specialize=["steps", "tiles"])
def _conv_one(
    x, past, weight, bias, out, steps, inputs, batch_stride, step_stride, past_stride, tiles,
    PAST: tl.constexpr, TAPS: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
    LINES: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    launch_dependents(PDL)
    history: tl.constexpr = TAPS - 1
    batch = (tl.program_id(0) // tiles).to(tl.int64)
    first = tl.program_id(0) % tiles * (LINES - history)
    line, tap, lane = tl.arange(0, LINES), tl.arange(0, COLUMNS), tl.arange(0, BLOCK_K)
    step = tl.minimum(first + line - history, steps - 1)  # lines past the end only add to results that are not stored
    fresh = step >= 0
    from_line = x + batch * batch_stride + step * step_stride
    past_line = past + batch * past_stride + (step + history) * inputs
    total = tl.zeros([LINES, COLUMNS], tl.float32)
    wait_prior(PDL)
    for start in range(0, inputs, BLOCK_K):
        k = start + lane
        inside = k < inputs
        value = values(from_line, past_line, fresh, k, inside, PAST, EVEN)
        own = tl.load(weight + tap[None] * inputs + k[:, None], mask=(tap < TAPS)[None] & inside[:, None], other=0.0)
        total = tl.dot(value, own, total, input_precision=PRECISION)
    at = tl.minimum(line[:, None] + tap[None], LINES - 1)
    result = tl.sum(tl.where((tap < TAPS)[None], tl.gather(total, at, 0), 0.0), 1) + tl.load(bias).to(tl.float32)
    there = (line < LINES - history) & (first + line < steps)
    tl.store(out + batch * steps + first + line, result.to(out.dtype.element_ty), mask=there)


def is_for_one(weight: Tensor, dilation: int) -> bool:
    """Whether `conv_one` takes a convolution with weight [columns, taps, I]."""
    columns, taps, _ = weight.shape
    return columns == 1 and 1 < taps <= _COLUMNS and dilation == 1 and weight.is_contiguous()


def conv_one(x: Tensor, weight: Tensor, bias: Tensor, past: Tensor | None) -> Tensor:
    """Convolve x [B, T, I] with weight [1, taps, I], and `past` as in `causal_conv` → [B, T, 1]."""
    batch, steps, inputs = x.shape
    x = x if x.stride(2) == 1 else x.contiguous()
    past = past if past is None or past.stride()[1:] == (inputs, 1) else past.contiguous()
    taps = weight.shape[1]
    out = x.new_empty(batch, steps, 1)
    tiles = cdiv(steps, _LINES - taps + 1)
    _conv_one[(batch * tiles,)](
        x, x if past is None else past, weight, bias, out, steps, inputs, x.stride(0), x.stride(1),
        0 if past is None else past.stride(0), tiles,
        PAST=past is not None, TAPS=taps, EVEN=inputs % _BLOCK_K == 0,
        PRECISION="ieee" if x.dtype.itemsize == 4 else "tf32", LINES=_LINES, COLUMNS=_COLUMNS, BLOCK_K=_BLOCK_K,
        num_warps=_WARPS, num_stages=_STAGES, **launch_options(x),
    )  # fmt: skip
    return out
