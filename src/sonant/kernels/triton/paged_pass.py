"""A pass over all layers with a paged cache, kernel by kernel, for what kernels/cuda/paged_pass.py does not take."""

from __future__ import annotations

from torch import Tensor

from sonant.kernels import ops
from sonant.kernels.reference import FrameStack, Heads
from sonant.kernels.triton import gemv
from sonant.kernels.triton.norm import rms_norm


def paged_pass(
    stack: FrameStack, x: Tensor, cos: Tensor, sin: Tensor, cache: Tensor, tables: Tensor, positions: Tensor,
    span_blocks: int,
) -> Tensor:  # fmt: skip
    """Attention is dispatched as usual, so it may be in CUDA C++."""
    for number, layer in enumerate(stack.layers):
        heads = Heads(layer.q_gain, layer.k_gain, cos, sin, stack.heads, stack.kv_heads, stack.eps)
        qkv = gemv.norm_linear(x, layer.input_gain, stack.eps, layer.qkv)
        mixed = ops.paged_step(qkv, heads, cache[number], tables, positions, span_blocks)
        x = gemv.linear_add(mixed.flatten(2), layer.out, x)
        x = gemv.linear_add(gemv.norm_gated(x, layer.post_gain, stack.eps, layer.gate_up), layer.down, x)
    return rms_norm(x, stack.gain, stack.eps)
