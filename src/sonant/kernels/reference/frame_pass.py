"""A pass over all layers of a stack at once: for new positions of a frame, or for the next one in a paged cache."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from sonant.kernels.reference.quantized import Weight
from sonant.kernels.reference.transformer import (
    Heads,
    linear,
    linear_add,
    norm_gated,
    norm_linear,
    paged_step,
    rms_norm,
    short_attention,
)


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
    stack: FrameStack, x: Tensor, cos: Tensor, sin: Tensor, cache: Tensor, first: int, head: Weight
) -> Tensor:
    """Take x [B, T, hidden] at positions `first` … through all layers, then its last position through the last norm and
    the `head` [codes, hidden] → logits [B, codes]. cos and sin [1, T, 1, D]. The cache [layers, 2, B, positions, Hkv,
    D] holds the keys and values of earlier positions, and the new ones are added."""
    for number, layer in enumerate(stack.layers):
        heads = Heads(layer.q_gain, layer.k_gain, cos, sin, stack.heads, stack.kv_heads, stack.eps)
        qkv = norm_linear(x, layer.input_gain, stack.eps, layer.qkv)
        x = linear_add(short_attention(qkv, heads, cache[number], first).flatten(2), layer.out, x)
        x = linear_add(norm_gated(x, layer.post_gain, stack.eps, layer.gate_up), layer.down, x)
    return linear(rms_norm(x[:, -1], stack.gain, stack.eps), head)


def paged_pass(
    stack: FrameStack, x: Tensor, cos: Tensor, sin: Tensor, cache: Tensor, tables: Tensor, positions: Tensor,
    span_blocks: int,
) -> Tensor:  # fmt: skip
    """Take x [B, 1, hidden] at `positions` [B, 1] through all layers and the last norm → [B, 1, hidden]. cos and sin
    [B, 1, 1, D]; a layer's part of the cache [layers, 2, blocks, block_tokens, Hkv, D] is as in `paged_step`. x may be
    overwritten.
    """
    for number, layer in enumerate(stack.layers):
        heads = Heads(layer.q_gain, layer.k_gain, cos, sin, stack.heads, stack.kv_heads, stack.eps)
        qkv = norm_linear(x, layer.input_gain, stack.eps, layer.qkv)
        mixed = paged_step(qkv, heads, cache[number], tables, positions, span_blocks)
        x = linear_add(mixed.flatten(2), layer.out, x)
        x = linear_add(norm_gated(x, layer.post_gain, stack.eps, layer.gate_up), layer.down, x)
    return rms_norm(x, stack.gain, stack.eps)
