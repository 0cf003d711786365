"""All the ops that layers may call, typed. Their contracts are in the reference, beside the code that defines them;
`dispatch.py` chooses the implementation that runs."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

import torch
from torch import Tensor

from sonant.kernels.dispatch import choose, pick
from sonant.kernels.gpu import gpu_of
from sonant.kernels.reference import (
    Bounds,
    DelayPattern,
    FlowEnds,
    FlowGiven,
    FrameCounters,
    FrameMemory,
    FrameStack,
    FrameTables,
    Heads,
    LocalWeights,
    LogitMask,
    Lookup,
    PatchCounters,
    PatchMemory,
    PatchStatuses,
    Place,
    Ras,
    RingPlace,
    RowCounters,
    SamplingParams,
    Sides,
    Snake,
    Split,
    Unit,
    Unscaled,
    Weight,
)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return pick("rms_norm", x)(x, weight, eps)


def add_norm(x: Tensor, branch: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return pick("add_norm", x)(x, branch, gain, eps)


def swiglu(gate_up: Tensor, unscaled: Unscaled | None = None) -> Tensor:
    return pick("swiglu", gate_up)(gate_up, unscaled)


def linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    return pick("linear", x)(x, weight, bias)


def linear_add(x: Tensor, weight: Weight, residual: Tensor) -> Tensor:
    return pick("linear_add", x)(x, weight, residual)


def norm_linear(x: Tensor, gain: Tensor, eps: float, weight: Weight) -> Tensor:
    return pick("norm_linear", x)(x, gain, eps, weight)


def norm_gated(x: Tensor, gain: Tensor, eps: float, weight: Weight, folded: bool = False) -> Tensor:
    return pick("norm_gated", x)(x, gain, eps, weight, folded)


def unscaled_linear(x: Tensor, weight: Weight) -> Tensor | None:
    """x times a weight that includes the gain of the preceding norm; what reads the product finishes that norm
    (`Unscaled`). None: use `norm_linear`, which does the norm here without a kernel of its own."""
    if torch.is_grad_enabled() or gpu_of(x.device) is None or importlib.util.find_spec("triton") is None:
        return None
    from sonant.kernels.triton import gemv

    return gemv.unscaled_linear(x, weight)


def dual_norm(x: Tensor, split: Split, gains: Sides[Tensor], eps: float) -> Tensor:
    return pick("dual_norm", x)(x, split, gains, eps)


def dual_norm_gated(x: Tensor, split: Split, gains: Sides[Tensor], eps: float, weights: Sides[Weight]) -> Tensor:
    return pick("dual_norm_gated", x)(x, split, gains, eps, weights)


def dual_linear_add(inner: Tensor, split: Split, weights: Sides[Weight], residual: Tensor) -> Tensor:
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
    bounds: Bounds | None = None,
) -> tuple[Tensor, Tensor]:
    convolve = pick("causal_conv", x)
    return convolve(x, weight, bias, past, dilation, residual=residual, snake=snake, keep=keep, bounds=bounds)


def residual_unit(
    x: Tensor, active: Tensor, unit: Unit, past: Tensor | None, following: Snake, *, keep: bool = True
) -> tuple[Tensor, Tensor]:
    return pick("residual_unit", x)(x, active, unit, past, following, keep=keep)


def depthwise(
    x: Tensor, weight: Tensor, bias: Tensor, past: Tensor | None, dilation: int = 1, *, snake: Snake | None = None
) -> Tensor:
    return pick("depthwise", x)(x, weight, bias, past, dilation, snake=snake)


def snake_beta(x: Tensor, alpha: Tensor, beta: Tensor, log_scale: bool = True) -> Tensor:
    return pick("snake_beta", x)(x, alpha, beta, log_scale)


def paged_attention(q: Tensor, cache: Tensor, tables: Tensor, positions: Tensor, span_blocks: int) -> Tensor:
    return pick("paged_attention", q)(q, cache, tables, positions, span_blocks)


def paged_step(qkv: Tensor, heads: Heads, cache: Tensor, tables: Tensor, positions: Tensor, span_blocks: int) -> Tensor:
    return pick("paged_step", qkv)(qkv, heads, cache, tables, positions, span_blocks)


def short_attention(qkv: Tensor, heads: Heads, cache: Tensor, first: int) -> Tensor:
    return pick("short_attention", qkv)(qkv, heads, cache, first)


def ring_attention(qkv: Tensor, heads: Heads, ring: Tensor, place: RingPlace) -> Tensor:
    return pick("ring_attention", qkv)(qkv, heads, ring, place)


def frame_pass(
    stack: FrameStack, x: Tensor, cos: Tensor, sin: Tensor, cache: Tensor, first: int, head: Weight
) -> Tensor:
    return pick("frame_pass", x)(stack, x, cos, sin, cache, first, head)


def paged_pass(
    stack: FrameStack, x: Tensor, cos: Tensor, sin: Tensor, cache: Tensor, tables: Tensor, positions: Tensor,
    span_blocks: int,
) -> Tensor:  # fmt: skip
    return pick("paged_pass", x)(stack, x, cos, sin, cache, tables, positions, span_blocks)


def has_whole_pass(op: str, x: Tensor) -> bool:
    """Whether `op` can take rows like x through all layers at once; if not, layers should be called one by one."""
    gpu = gpu_of(x.device)
    if len(x) != 1 or gpu is None:
        return False
    return choose(op, "cuda", torch.is_grad_enabled(), gpu).implementation == "cuda"


def dense_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
    return pick("dense_attention", q)(q, k, v, visible)


def uniforms(seed: Tensor, frame: Tensor, count: int) -> Tensor:
    return pick("uniforms", seed)(seed, frame, count)


def sample(
    logits: Tensor, uniform: Tensor, params: SamplingParams, mask: LogitMask | None = None, lookup: Lookup | None = None
) -> Tensor:
    return pick("sample", logits)(logits, uniform, params, mask, lookup)


def delay_step(
    drawn: Tensor, own: RowCounters, rows: Tensor, ring: Tensor, counters: Tensor, pattern: DelayPattern
) -> Tensor:
    return pick("delay_step", drawn)(drawn, own, rows, ring, counters, pattern)


def ras_sample(logits: Tensor, uniform: Tensor, params: SamplingParams, ras: Ras) -> Tensor:
    return pick("ras_sample", logits)(logits, uniform, params, ras)


def local_attention(qkv: Tensor, heads: Heads) -> Tensor:
    return pick("local_attention", qkv)(qkv, heads)


def local_attention_add(qkv: Tensor, heads: Heads, weight: Weight, residual: Tensor) -> Tensor:
    return pick("local_attention_add", qkv)(qkv, heads, weight, residual)


def local_stack(x: Tensor, layers: Sequence[LocalWeights]) -> Tensor:
    return pick("local_stack", x)(x, layers)


def flow_open(x: Tensor, time: Tensor, given: FlowGiven, ends: FlowEnds) -> Tensor:
    return pick("flow_open", x)(x, time, given, ends)


def flow_move(x: Tensor, hidden: Tensor, length: float, given: FlowGiven, ends: FlowEnds) -> Tensor:
    return pick("flow_move", x)(x, hidden, length, given, ends)


def flow_turn(
    x: Tensor, hidden: Tensor, length: float, time: Tensor, given: FlowGiven, ends: FlowEnds
) -> tuple[Tensor, Tensor]:
    return pick("flow_turn", x)(x, hidden, length, time, given, ends)


def normals(seed: Tensor, frame: Tensor, scale: Tensor, count: int) -> Tensor:
    return pick("normals", seed)(seed, frame, scale, count)


def patch_step(
    patch: Tensor,
    embedded: Tensor,
    stop: Tensor,
    own: PatchCounters,
    rows: Tensor,
    memory: PatchMemory,
    statuses: PatchStatuses,
) -> Tensor:
    return pick("patch_step", patch)(patch, embedded, stop, own, rows, memory, statuses)


def frame_step(
    first: Tensor,
    rest: Tensor,
    status: Tensor,
    own: FrameCounters,
    rows: Tensor,
    memory: FrameMemory,
    tables: FrameTables,
    running: int,
) -> Tensor:
    return pick("frame_step", first)(first, rest, status, own, rows, memory, tables, running)


def pcm16(sound: Tensor) -> Tensor:
    return pick("pcm16", sound)(sound)
