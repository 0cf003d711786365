"""Every op in plain torch: the truth that faster kernels are tested against, and the CPU path.

Uninitialised cache memory may hold NaN, so nothing here lets a masked value take part in arithmetic.
"""

from __future__ import annotations

from sonant.kernels.reference.attention import dense_attention, paged_attention, paged_step, short_attention
from sonant.kernels.reference.conv import Bounds, Snake, causal_conv, convolve, depthwise, inside, snake_beta
from sonant.kernels.reference.linear import linear, linear_add, norm_gated, norm_linear, rms_norm, swiglu
from sonant.kernels.reference.rope import Heads, Place, paged_write, qk_rope, rotate
from sonant.kernels.reference.sampling import LogitMask, Lookup, SamplingParams, penalize, sample, uniforms

__all__ = [
    "Bounds",
    "Heads",
    "LogitMask",
    "Lookup",
    "Place",
    "SamplingParams",
    "Snake",
    "causal_conv",
    "convolve",
    "dense_attention",
    "depthwise",
    "inside",
    "linear",
    "linear_add",
    "norm_gated",
    "norm_linear",
    "paged_attention",
    "paged_step",
    "paged_write",
    "penalize",
    "qk_rope",
    "rms_norm",
    "rotate",
    "sample",
    "short_attention",
    "snake_beta",
    "swiglu",
    "uniforms",
]
