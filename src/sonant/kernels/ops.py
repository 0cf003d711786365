"""All the ops that layers may call, typed, and which implementation runs: Triton on a CUDA device, torch elsewhere.

Attention over the paged cache, stacks over few rows, whole passes of one row, and convolutions and residual units of
many values are in CUDA C++ too, for GPUs and machines that can have it. Contracts are in the reference, next to the
code that defines them. Training runs the reference, because only that has gradients. `sonant doctor` prints these
choices.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from sonant.errors import ConfigError
from sonant.kernels import reference
from sonant.kernels.gpu import Gpu, gpu_of
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

_LOG = logging.getLogger(__name__)

# op → the Triton file that has it; None: plain torch is all there is, or all that is needed
OPS: Mapping[str, str | None] = MappingProxyType(
    {
        "add_norm": "norm",
        "causal_conv": "conv",
        "dense_attention": None,
        "delay_step": "delay",
        "depthwise": "depthwise",
        "dual_linear_add": "dual_ffn",
        "dual_norm": "dual_ffn",
        "dual_norm_gated": "dual_ffn",
        "flow_move": "flow",
        "flow_open": "flow",
        "flow_turn": "flow",
        "frame_pass": "frame_pass",
        "frame_step": "frame_step",
        "linear": "gemv",
        "linear_add": "gemv",
        "local_attention": "local",
        "local_attention_add": "local_out",
        "local_stack": "local_stack",
        "norm_gated": "gemv",
        "norm_linear": "gemv",
        "normals": "uniforms",
        "paged_attention": "paged",
        "paged_pass": "paged_pass",
        "paged_step": "paged",
        "patch_step": "patch",
        "pcm16": "pcm",
        "qk_rope": "qk_rope",
        "ras_sample": "ras_sample",
        "residual_unit": "unit",
        "ring_attention": "ring",
        "rms_norm": "norm",
        "sample": "sample",
        "short_attention": "short",
        "snake_beta": "snake",
        "swiglu": "swiglu",
        "uniforms": "uniforms",
    }
)
# op → the file in kernels/cuda that has it as well
IN_CUDA: Mapping[str, str] = MappingProxyType(
    {
        "frame_pass": "frame_pass",
        "local_stack": "stack",
        "paged_attention": "attention",
        "paged_pass": "paged_pass",
        "paged_step": "attention",
    }
)


@dataclass(frozen=True)
class Choice:
    op: str
    implementation: str
    reason: str
    function: Callable[..., Any]


@lru_cache(maxsize=256)
def choose(op: str, device_type: str, training: bool = False, gpu: Gpu | None = None) -> Choice:
    """Without a GPU to ask for, no more is counted on than that Triton serves it."""
    plain = getattr(reference, op)
    file = OPS[op]
    if device_type != "cuda":
        return Choice(op, "reference", f"there are no kernels for {device_type}", plain)
    if training:
        return Choice(op, "reference", "only the reference has gradients", plain)
    if file is None:
        return Choice(op, "reference", "no kernel for it yet", plain)
    if importlib.util.find_spec("triton") is None:
        return Choice(op, "reference", "triton is not installed", plain)
    module = importlib.import_module(f"sonant.kernels.triton.{file}")
    fused = Choice(op, "triton", "fused for CUDA", getattr(module, op))
    return fused if gpu is None or op not in IN_CUDA else _choose_in_cuda(fused, plain, gpu)


def _choose_in_cuda(fused: Choice, plain: Callable[..., Any], gpu: Gpu) -> Choice:
    module = importlib.import_module(f"sonant.kernels.cuda.{IN_CUDA[fused.op]}")
    asked = module.wanted()
    if asked == "torch":
        return Choice(fused.op, "reference", f"{module.VARIABLE} asks for it", plain)
    if asked == "triton":
        return replace(fused, reason=f"{module.VARIABLE} asks for it")
    obstacle = module.obstacle(gpu)
    if obstacle is None:
        return Choice(fused.op, "cuda", f"CUDA C++ for {gpu.name}; {module.ELSE}", getattr(module, fused.op))
    if asked == "cuda":
        raise ConfigError(f"{module.VARIABLE} asks for {module.WHAT} in CUDA C++, but {obstacle}")
    _tell(f"{module.WHAT} runs in Triton, not in CUDA C++: {obstacle}")
    return replace(fused, reason=f"not in CUDA C++: {obstacle}")


@cache
def _tell(what: str) -> None:
    """Once a process."""
    _LOG.info(what)


def pick(op: str, on: Tensor) -> Callable[..., Any]:
    gpu = gpu_of(on.device)
    device_type = on.device.type if gpu is None else "cuda"
    return choose(op, device_type, torch.is_grad_enabled(), gpu if op in IN_CUDA else None).function


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
    """x times a weight that has the gain of the norm before in it; whoever reads the product finishes that norm
    (`Unscaled`). None: `norm_linear` has the norm inside here, without a kernel of its own."""
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
    """Whether `op` may take rows like x through all layers at once; if not, layers had better be called."""
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
