"""A pass of one row over all layers of a stack with a paged cache in one kernel, in CUDA C++: the wrapper of
`source/paged_pass.cu`."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from sonant.kernels.cuda import single_pass
from sonant.kernels.cuda.compiler import Program
from sonant.kernels.cuda.single_pass import (
    HEAD,
    SHARE,
    STRIPS,
    WARPS,
    Form,
    Given,
    form_for,
    in_eight_bits,
    pass_kernel,
)
from sonant.kernels.gpu import Gpu
from sonant.kernels.reference import FrameStack

VARIABLE = "SONANT_TALKER"
WHAT = "a stack's pass over one row"
ELSE = "other rows or widths, caches not in bfloat16, and weights neither in bfloat16 nor of eight bits, go to Triton"
_NEAR = 64  # positions of a warp whose slots are looked up once for all layers
_OWN_BYTES = 2 * 2 * HEAD + 4 * WARPS * SHARE * (HEAD + 4) + 4 * WARPS * _NEAR


def _form(width: int, inner: int, layers: int, kv_heads: int) -> Form:
    own_words = 2 * kv_heads * STRIPS * SHARE * (HEAD + 2)
    return Form("paged_pass", width, inner, layers, kv_heads, 0, _OWN_BYTES, own_words)


_SIXTEEN = _form(2048, 6144, 28, 8), _form(1024, 3072, 28, 8)
_FORMS = *_SIXTEEN, *(in_eight_bits(form) for form in _SIXTEEN)


def programs() -> Iterator[Program]:
    for form in _FORMS:
        yield pass_kernel(form).program


def obstacle(gpu: Gpu) -> str | None:
    return single_pass.obstacle(gpu, _FORMS)


def form_of(stack: FrameStack) -> Form:
    return form_for(stack, _FORMS)


def refusal(stack: FrameStack, x: Tensor, cache: Tensor, tables: Tensor, positions: Tensor) -> str | None:
    """Why these tensors are not for our kernel; None: they are."""
    if cache.shape[-2:] != (form_of(stack).kv_heads, HEAD) or len(cache) != len(stack.layers):
        return f"a cache of {list(cache.shape)} has another shape"
    if tables.dtype != torch.int32 or positions.dtype not in (torch.int32, torch.int64) or tables.stride(1) != 1:
        return f"tables are {tables.dtype} and positions {positions.dtype}, not int32, or not in one piece"
    return single_pass.refusal(form_of(stack), stack, x, [cache])


def takes(stack: FrameStack, x: Tensor, cache: Tensor, tables: Tensor, positions: Tensor) -> bool:
    if refusal(stack, x, cache, tables, positions) is not None:
        return False
    return pass_kernel(form_of(stack)).is_ready(x.device)


def paged_pass(
    stack: FrameStack, x: Tensor, cos: Tensor, sin: Tensor, cache: Tensor, tables: Tensor, positions: Tensor,
    span_blocks: int,
) -> Tensor:  # fmt: skip
    if not takes(stack, x, cache, tables, positions):
        from sonant.kernels.triton import paged_pass as chain

        return chain.paged_pass(stack, x, cos, sin, cache, tables, positions, span_blocks)
    return run(stack, x, cos, sin, cache, tables, positions)


def run(
    stack: FrameStack, x: Tensor, cos: Tensor, sin: Tensor, cache: Tensor, tables: Tensor, positions: Tensor,
    clock: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """x [1, 1, hidden] → its hidden state after the last norm, if the kernel `takes` it."""
    out, block_tokens = torch.empty_like(x), cache.shape[3]
    numbers = (int(positions.dtype == torch.int64), tables.shape[1] * block_tokens, block_tokens)
    given = Given(x, cos, sin, cache.unbind(), out, None, tables, positions, numbers, clock)
    single_pass.launch(form_of(stack), stack, given)
    return out
