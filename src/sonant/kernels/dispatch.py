"""Which implementation of an op runs, and why: Triton on a CUDA device, plain torch elsewhere.

Training runs the reference, because only that has gradients. `sonant doctor` prints these choices.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import torch

from sonant.kernels import reference

# op → the Triton file that has it; None: plain torch is all there is, or all that is needed
OPS: Mapping[str, str | None] = MappingProxyType(
    {
        "causal_conv": "conv",
        "dense_attention": None,
        "depthwise": "depthwise",
        "dual_linear_add": "dual_ffn",
        "dual_norm": "dual_ffn",
        "dual_norm_gated": "dual_ffn",
        "linear": "gemv",
        "linear_add": "gemv",
        "norm_gated": "gemv",
        "norm_linear": "gemv",
        "paged_attention": "paged",
        "paged_step": "paged",
        "qk_rope": "qk_rope",
        "ras_sample": "ras_sample",
        "rms_norm": "norm",
        "sample": "sample",
        "short_attention": "short",
        "snake_beta": "snake",
        "uniforms": "uniforms",
    }
)


@dataclass(frozen=True)
class Choice:
    op: str
    implementation: str
    reason: str
    function: Callable[..., Any]


@lru_cache(maxsize=256)
def choose(op: str, device_type: str, training: bool = False) -> Choice:
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
    return Choice(op, "triton", "fused for CUDA", getattr(module, op))


def pick(op: str, on: torch.Tensor) -> Callable[..., Any]:
    return choose(op, on.device.type, torch.is_grad_enabled()).function
