"""A pass over all layers of a small stack that starts afresh with every frame: one new position of every row."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from sonant.kernels.reference.quantized import Weight
from sonant.kernels.reference.transformer import Heads, linear_add, norm_gated, norm_linear, short_attention


class FrameLayer(NamedTuple):
    input_gain: Tensor
    qkv: Weight
    q_gain: Tensor
    k_gain: Tensor
    out: Weight
    post_gain: Tensor
    gate_up: Weight
    down: Weight


class FrameStack(NamedTuple):
    layers: tuple[FrameLayer, ...]
    gain: Tensor  # of the last norm
    heads: int
    kv_heads: int
    eps: float


def frame_pass(
    stack: FrameStack, x: Tensor, cos: Tensor, sin: Tensor, cache: Tensor, at: int, head: Tensor | None
) -> Tensor | None:
    """x [B, 1, hidden] at position `at` through all layers, the last norm and the `head` [codes, hidden] → logits
    [B, codes]; without a head nothing comes of it but keys and values, in cache [layers, 2, B, positions, Hkv, D]."""
    for number, layer in enumerate(stack.layers):
        heads = Heads(layer.q_gain, layer.k_gain, cos, sin, stack.heads, stack.kv_heads, stack.eps)
        qkv = norm_linear(x, layer.input_gain, stack.eps, layer.qkv)
        x = linear_add(short_attention(qkv, heads, cache[number], at).flatten(2), layer.out, x)
        x = linear_add(norm_gated(x, layer.post_gain, stack.eps, layer.gate_up), layer.down, x)
    return None if head is None else norm_linear(x[:, 0], stack.gain, stack.eps, head)
