"""A pass over all layers of a small stack: one kernel (kernels/cuda/source/frame_pass.cu) for one row of a stack that
it knows, where a measurement says so; otherwise the kernels of each layer, one after another."""

from __future__ import annotations

from torch import Tensor

from sonant.kernels.cuda import frame_pass as whole
from sonant.kernels.reference import FrameStack, Heads
from sonant.kernels.triton import gemv
from sonant.kernels.triton.short import short_attention
from sonant.kernels.tuning import find


def is_measured(stack: FrameStack, x: Tensor) -> bool:
    tile = find("frame_pass", f"{len(stack.layers)}x{x.shape[-1]} {8 * x.dtype.itemsize}", len(x), x.device)
    return tile is not None and tile.cuda


def is_one_kernel(stack: FrameStack, x: Tensor, cache: Tensor, head: Tensor | None) -> bool:
    return len(x) == 1 and is_measured(stack, x) and whole.fits(stack, x, cache, head)


def frame_pass(
    stack: FrameStack, x: Tensor, cos: Tensor, sin: Tensor, cache: Tensor, at: int, head: Tensor | None
) -> Tensor | None:
    x = x.contiguous()
    if is_one_kernel(stack, x, cache, head):
        return whole.frame_pass(stack, x, cos.contiguous(), sin.contiguous(), cache, at, head)
    for number, layer in enumerate(stack.layers):
        heads = Heads(layer.q_gain, layer.k_gain, cos, sin, stack.heads, stack.kv_heads, stack.eps)
        qkv = gemv.norm_linear(x, layer.input_gain, stack.eps, layer.qkv)
        x = gemv.linear_add(short_attention(qkv, heads, cache[number], at).flatten(2), layer.out, x)
        x = gemv.linear_add(gemv.norm_gated(x, layer.post_gain, stack.eps, layer.gate_up), layer.down, x)
    return None if head is None else gemv.norm_linear(x[:, 0], stack.gain, stack.eps, head)
