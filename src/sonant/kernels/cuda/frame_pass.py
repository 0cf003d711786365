"""A pass over all layers of a code predictor in one kernel, in CUDA C++: the wrapper of `source/frame_pass.cu`.

It takes one row, one position a launch or a frame's opening pair, and the published predictor's shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from sonant.kernels.cuda import single_pass
from sonant.kernels.cuda.compiler import Program
from sonant.kernels.cuda.single_pass import HEAD, SHARE, STRIPS, Form, Given, form_for, in_eight_bits, pass_kernel
from sonant.kernels.gpu import Gpu
from sonant.kernels.reference import FrameStack, Weight

VARIABLE = "SONANT_PREDICTOR"
WHAT = "a predictor's pass over one row"
ELSE = "other rows or widths, and weights neither in bfloat16 nor of eight bits, go to Triton"
_POSITIONS = 16
_KEPT_BYTES, _SCORE_BYTES = 2 * _POSITIONS * (HEAD + HEAD // STRIPS), 4 * SHARE * _POSITIONS
_OWN_BYTES = _KEPT_BYTES + _SCORE_BYTES
_USUAL = Form("frame_pass", 1024, 3072, 5, 8, 2048, _OWN_BYTES, 0, kept=14, held=48)  # best on an H200
_FORMS = _USUAL, in_eight_bits(_USUAL)


def programs() -> Iterator[Program]:
    for form in _FORMS:
        yield pass_kernel(form).program
        yield pass_kernel(opening(form)).program


def obstacle(gpu: Gpu) -> str | None:
    return single_pass.obstacle(gpu, _FORMS)


def form_of(stack: FrameStack) -> Form:
    return form_for(stack, _FORMS)


def opening(form: Form) -> Form:
    """The same for a frame's first two positions, which leave no registers to hold weights in."""
    return replace(form, rows=2, own_bytes=_KEPT_BYTES + 2 * _SCORE_BYTES, held=0)


def refusal(stack: FrameStack, x: Tensor, cache: Tensor, head: Weight) -> str | None:
    """Why these tensors are not for our kernel; None: they are."""
    form = form_of(stack)
    expected = (len(stack.layers), 2, len(x), _POSITIONS, form.kv_heads, HEAD), (form.codes, form.width)
    if (cache.shape, head.shape) != expected:
        return f"keys and values of {list(cache.shape)}, or a head of {list(head.shape)}, have other shapes"
    return single_pass.refusal(form, stack, x, [cache, head])


def takes(stack: FrameStack, x: Tensor, cache: Tensor, head: Weight) -> bool:
    """Whether this runs as one kernel for each position, or for the opening pair."""
    return refusal(stack, x, cache, head) is None and pass_kernel(form_of(stack)).is_ready(x.device)


def frame_pass(
    stack: FrameStack, x: Tensor, cos: Tensor, sin: Tensor, cache: Tensor, first: int, head: Weight
) -> Tensor:
    if not takes(stack, x, cache, head):
        from sonant.kernels.triton import frame_pass as chain

        return chain.frame_pass(stack, x, cos, sin, cache, first, head)
    assert isinstance(head, Tensor)
    form = form_of(stack)
    out = x.new_empty(1, form.codes)
    if x.shape[1] == 2 and pass_kernel(opening(form)).is_ready(x.device):
        run(stack, x, cos, sin, cache, first, head, out)
        return out
    for n in range(x.shape[1]):
        is_last = n == x.shape[1] - 1
        run(stack, x[:, n], cos[:, n], sin[:, n], cache, first + n, head if is_last else None, out)
    return out


def run(
    stack: FrameStack, x: Tensor, cos: Tensor, sin: Tensor, cache: Tensor, at: int, head: Tensor | None, out: Tensor,
    clock: Tensor | None = None,
) -> None:  # fmt: skip
    """x [1, hidden] at one position, or [1, 2, hidden] at two; without a head it only makes keys and values."""
    layers, form = cache.unbind(), form_of(stack)
    given = Given(x, cos, sin, layers, out, head, numbers=(at, 0, 0), clock=clock)
    single_pass.launch(opening(form) if x.dim() == 3 else form, stack, given)
