"""Every op in plain torch: the truth that faster kernels are tested against, and the CPU path.

Uninitialised cache memory may hold NaN, so nothing here lets a masked value take part in arithmetic.
"""

from __future__ import annotations

from sonant.kernels.reference.conv import (
    Bounds,
    Snake,
    causal_conv,
    convolve,
    depthwise,
    exact_conv,
    inside,
    snake_beta,
)
from sonant.kernels.reference.delay import DelayPattern, RowCounters, Statuses, delay_step
from sonant.kernels.reference.dual import Sides, Split, dual_linear_add, dual_norm, dual_norm_gated, split_kinds
from sonant.kernels.reference.flow import guided_step
from sonant.kernels.reference.sampling import (
    LogitMask,
    Lookup,
    Ras,
    SamplingParams,
    penalize,
    ras_sample,
    sample,
    uniforms,
)
from sonant.kernels.reference.sound import pcm16
from sonant.kernels.reference.transformer import (
    Heads,
    Place,
    dense_attention,
    linear,
    linear_add,
    local_attention,
    local_attention_add,
    norm_gated,
    norm_linear,
    paged_attention,
    paged_step,
    paged_write,
    qk_rope,
    rms_norm,
    rotate,
    short_attention,
    swiglu,
)

__all__ = [
    "Bounds",
    "DelayPattern",
    "Heads",
    "LogitMask",
    "Lookup",
    "Place",
    "Ras",
    "RowCounters",
    "SamplingParams",
    "Sides",
    "Snake",
    "Split",
    "Statuses",
    "causal_conv",
    "convolve",
    "delay_step",
    "dense_attention",
    "depthwise",
    "dual_linear_add",
    "dual_norm",
    "dual_norm_gated",
    "exact_conv",
    "guided_step",
    "inside",
    "linear",
    "linear_add",
    "local_attention",
    "local_attention_add",
    "norm_gated",
    "norm_linear",
    "paged_attention",
    "paged_step",
    "paged_write",
    "pcm16",
    "penalize",
    "qk_rope",
    "ras_sample",
    "rms_norm",
    "rotate",
    "sample",
    "short_attention",
    "snake_beta",
    "split_kinds",
    "swiglu",
    "uniforms",
]
