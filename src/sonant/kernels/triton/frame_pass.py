"""A pass over all layers of a small stack, kernel by kernel, for what kernels/cuda/frame_pass.py does not take."""

from __future__ import annotations

from torch import Tensor

from sonant.kernels.reference import FrameStack, Heads, Weight
from sonant.kernels.triton import gemv
from sonant.kernels.triton.norm import rms_norm
from sonant.kernels.triton.short import short_attention


def frame_pass(
    stack: FrameStack, x: Tensor, cos: Tensor, sin: Tensor, cache: Tensor, first: int, head: Weight
) -> Tensor:
    for number, layer in enumerate(stack.layers):
        heads = Heads(layer.q_gain, layer.k_gain, cos, sin, stack.heads, stack.kv_heads, stack.eps)
        qkv = gemv.norm_linear(x, layer.input_gain, stack.eps, layer.qkv)
        x = gemv.linear_add(short_attention(qkv, heads, cache[number], first).flatten(2), layer.out, x)
        x = gemv.linear_add(gemv.norm_gated(x, layer.post_gain, stack.eps, layer.gate_up), layer.down, x)
    return gemv.linear(rms_norm(x[:, -1], stack.gain, stack.eps), head)
