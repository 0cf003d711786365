"""Every op in plain torch: the truth that faster kernels are tested against, and the CPU path.

Uninitialised cache memory may hold NaN, so nothing here lets a masked value take part in arithmetic.
"""

from __future__ import annotations

from sonant.kernels.reference.attention import dense_attention, paged_attention, paged_step, short_attention
from sonant.kernels.reference.conv import Snake, causal_conv, convolve, depthwise, snake_beta
from sonant.kernels.reference.dual import Sides, Split, dual_linear_add, dual_norm, dual_norm_gated, split_kinds
from sonant.kernels.reference.linear import linear, linear_add, norm_gated, norm_linear, rms_norm, swiglu
from sonant.kernels.reference.rope import Heads, Place, paged_write, qk_rope, rotate
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

__all__ = [
    "Heads",
    "LogitMask",
    "Lookup",
    "Place",
    "Ras",
    "SamplingParams",
    "Sides",
    "Snake",
    "Split",
    "causal_conv",
    "convolve",
    "dense_attention",
    "depthwise",
    "dual_linear_add",
    "dual_norm",
    "dual_norm_gated",
    "linear",
    "linear_add",
    "norm_gated",
    "norm_linear",
    "paged_attention",
    "paged_step",
    "paged_write",
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
