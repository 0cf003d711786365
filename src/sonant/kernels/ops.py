"""All the ops that layers may call, typed; `dispatch` picks the implementation.

Contracts are in the reference, next to the code that defines them.
"""

from __future__ import annotations

from torch import Tensor

from sonant.kernels.dispatch import pick
from sonant.kernels.reference import Heads, LogitMask, Lookup, Place, Ras, SamplingParams, Sides, Snake, Split


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return pick("rms_norm", x)(x, weight, eps)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    return pick("linear", x)(x, weight)


def linear_add(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    return pick("linear_add", x)(x, weight, residual)


def norm_linear(x: Tensor, gain: Tensor, eps: float, weight: Tensor) -> Tensor:
    return pick("norm_linear", x)(x, gain, eps, weight)


def norm_gated(x: Tensor, gain: Tensor, eps: float, weight: Tensor) -> Tensor:
    return pick("norm_gated", x)(x, gain, eps, weight)


def dual_norm(x: Tensor, split: Split, gains: Sides, eps: float) -> Tensor:
    return pick("dual_norm", x)(x, split, gains, eps)


def dual_norm_gated(x: Tensor, split: Split, gains: Sides, eps: float, weights: Sides) -> Tensor:
    return pick("dual_norm_gated", x)(x, split, gains, eps, weights)


def dual_linear_add(inner: Tensor, split: Split, weights: Sides, residual: Tensor) -> Tensor:
    return pick("dual_linear_add", inner)(inner, split, weights, residual)


def qk_rope(qkv: Tensor, heads: Heads, place: Place | None = None) -> tuple[Tensor, Tensor, Tensor]:
    return pick("qk_rope", qkv)(qkv, heads, place)


def causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    past: Tensor | None,
    dilation: int = 1,
    *,
    residual: Tensor | None = None,
    snake: Snake | None = None,
    keep: bool = True,
) -> tuple[Tensor, Tensor]:
    convolve = pick("causal_conv", x)
    return convolve(x, weight, bias, past, dilation, residual=residual, snake=snake, keep=keep)


def depthwise(x: Tensor, weight: Tensor, bias: Tensor, dilation: int = 1) -> Tensor:
    return pick("depthwise", x)(x, weight, bias, dilation)


def snake_beta(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    return pick("snake_beta", x)(x, alpha, beta)


def paged_attention(q: Tensor, cache: Tensor, tables: Tensor, positions: Tensor, span_blocks: int) -> Tensor:
    return pick("paged_attention", q)(q, cache, tables, positions, span_blocks)


def paged_step(qkv: Tensor, heads: Heads, cache: Tensor, tables: Tensor, positions: Tensor, span_blocks: int) -> Tensor:
    return pick("paged_step", qkv)(qkv, heads, cache, tables, positions, span_blocks)


def short_attention(qkv: Tensor, heads: Heads, cache: Tensor, first: int) -> Tensor:
    return pick("short_attention", qkv)(qkv, heads, cache, first)


def dense_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
    return pick("dense_attention", q)(q, k, v, visible)


def uniforms(seed: Tensor, frame: Tensor, count: int) -> Tensor:
    return pick("uniforms", seed)(seed, frame, count)


def sample(
    logits: Tensor, uniform: Tensor, params: SamplingParams, mask: LogitMask | None = None, lookup: Lookup | None = None
) -> Tensor:
    return pick("sample", logits)(logits, uniform, params, mask, lookup)


def ras_sample(logits: Tensor, uniform: Tensor, params: SamplingParams, ras: Ras) -> Tensor:
    return pick("ras_sample", logits)(logits, uniform, params, ras)
