"""Which implementation of an op runs: Triton on a CUDA device, torch elsewhere.

Attention over the paged cache, stacks over few rows, whole passes of one row, and convolutions and residual units of
many values are in CUDA C++ too, for GPUs and machines that can use it. Training runs the reference, since nothing else
has gradients. `sonant doctor` prints these choices.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from sonant.errors import ConfigError
from sonant.kernels import reference
from sonant.kernels.cuda.asked import asked_for
from sonant.kernels.gpu import Gpu, gpu_of

_LOG = logging.getLogger(__name__)

# op → the file in kernels/triton that has it; None: there is only torch, which may be all that is needed
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
    """Without a `gpu` the choice for a CUDA device is Triton, since CUDA C++ depends on the GPU."""
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
    asked = asked_for(module.VARIABLE)
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
    """Log it once in this process."""
    _LOG.info(what)


def pick(op: str, on: Tensor) -> Callable[..., Any]:
    gpu = gpu_of(on.device)
    device_type = on.device.type if gpu is None else "cuda"
    return choose(op, device_type, torch.is_grad_enabled(), gpu if op in IN_CUDA else None).function
