"""Rounds a convolution's inputs to eight bits, with the past in front of them: one pass that reads both once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sonant.kernels.sizes import cdiv
from sonant.kernels.triton.pdl import launch_dependents, launch_options, wait_prior

_LINES, _CHANNELS, _WARPS = 64, 128, 8
_LARGEST = tl.constexpr(127.0)
_ROUNDS = tl.constexpr(12582912.0)  # 1.5 · 2²³: float32 has no fractions there, so adding it rounds, halves to even


@triton.jit(do_not_specialize=["steps", "history"])
def _int8_lines(
    x, past, inverse, out, steps, history, channels, past_stride,
    PAST: tl.constexpr, PDL: tl.constexpr, LINES: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    launch_dependents(PDL)
    batch = tl.program_id(2).to(tl.int64)
    line = (tl.program_id(1) * LINES + tl.arange(0, LINES))[:, None]
    channel = (tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS))[None]
    known = channel < channels
    factor = tl.load(inverse + channel, mask=known, other=0.0)
    wait_prior(PDL)
    fresh = (line >= history) & (line < history + steps) & known
    value = tl.load(x + (batch * steps + line - history) * channels + channel, mask=fresh, other=0.0).to(tl.float32)
    if PAST:
        at = past + batch * past_stride + line * channels + channel
        value += tl.load(at, mask=(line < history) & known, other=0.0).to(tl.float32)
    value = tl.minimum(tl.maximum(value * factor, -_LARGEST), _LARGEST)
    value = (value + _ROUNDS) - _ROUNDS
    to = out + (batch * (history + steps) + line) * channels + channel
    tl.store(to, value.to(tl.int8), mask=(line < history + steps) & known)


def int8_lines(x: Tensor, past: Tensor | None, history: int, inverse: Tensor) -> Tensor:
    batch, steps, channels = x.shape
    out = torch.empty(batch, history + steps, channels, dtype=torch.int8, device=x.device)
    _int8_lines[(cdiv(channels, _CHANNELS), cdiv(history + steps, _LINES), batch)](
        x, x if past is None else past, inverse, out, steps, history, channels, 0 if past is None else past.stride(0),
        PAST=past is not None, LINES=_LINES, CHANNELS=_CHANNELS, num_warps=_WARPS, **launch_options(x),
    )  # fmt: skip
    return out
