"""Stacks of drawn weights for passes of one row over all layers, and checks of those passes against float32."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.against import random
from sonant.kernels import reference
from sonant.kernels.cuda import frame_pass, paged_pass
from sonant.kernels.cuda.kernel import CudaKernel
from sonant.kernels.cuda.single_pass import HEAD, Form
from sonant.kernels.reference import FrameLayer, FrameStack, QuantizedWeight, Weight, quantize

BF16, POSITIONS = torch.bfloat16, 16
Drawn = Callable[[int, int, int], Weight]  # columns, depth, seed → a weight


def weight(columns: int, depth: int, seed: int) -> Tensor:
    return (random(columns, depth, dtype=BF16, seed=seed) / depth**0.5).to(BF16)


def weight_of_eight_bits(columns: int, depth: int, seed: int) -> QuantizedWeight:
    """A weight whose neighbouring columns have different scales."""
    factors = 0.5 + torch.arange(columns) % 3 / 2
    return quantize(random(columns, depth, seed=seed) / depth**0.5 * factors[:, None])


def gain(width: int, seed: int) -> Tensor:
    return (1 + 0.1 * random(width, seed=seed)).to(BF16)


def stack_of(form: Form, drawn: Drawn = weight) -> FrameStack:
    made = []
    for n in range(0, 10 * form.layers, 10):
        parts = [gain(*s, n + i) if len(s) == 1 else drawn(*s, n + i) for i, s in enumerate(form.shapes)]
        made.append(FrameLayer(*parts))
    return FrameStack(tuple(made), gain(form.width, 8), form.heads, form.kv_heads, 1e-6)


def wide(stack: FrameStack) -> FrameStack:
    """The stack in float32. A weight of eight bits stays, since it is exact in float32."""
    layers = tuple(FrameLayer(*(t.float() if isinstance(t, Tensor) else t for t in layer)) for layer in stack.layers)
    return stack._replace(layers=layers, gain=stack.gain.float())


def without_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the kernel for a frame's first two positions could not be built."""
    monkeypatch.setattr(CudaKernel, "is_ready", lambda self, device: self.program.defines["ROWS"] == 1)


def error(got: Tensor, expected: Tensor) -> float:
    assert got.shape == expected.shape and got.isfinite().all()
    return float((got.double() - expected.double()).norm() / expected.double().norm())


def check_frames(form: Form, stack: FrameStack) -> None:
    """Check the opening pair of positions, then one more. The cache is NaN where no pass has written, and the words in
    which blocks exchange values are as the previous pass left them."""
    head = weight(form.codes, form.width, 9)
    cos, sin = (random(1, POSITIONS, 1, HEAD, dtype=BF16, seed=n) for n in (90, 91))
    cache = torch.full((form.layers, 2, 1, POSITIONS, form.kv_heads, HEAD), float("nan"), dtype=BF16)
    other = cache.float()
    for first, last in ((0, 2), (2, 3)):
        x = random(1, last - first, form.width, dtype=BF16, seed=100 + first)
        turns = cos[:, first:last], sin[:, first:last]
        assert frame_pass.refusal(stack, x, cache, head) is None
        got = frame_pass.frame_pass(stack, x, *turns, cache, first, head)
        given = wide(stack), x.float(), *(t.float() for t in turns), other, first, head.float()
        assert error(got, reference.frame_pass(*given)) < 0.015
    assert torch.equal(cache.isnan(), other.isnan())
    assert error(cache.nan_to_num(), other.nan_to_num()) < 0.01


def check_steps(form: Form, stack: FrameStack, at: int, dtype: torch.dtype) -> None:
    """Check two steps, at consecutive positions. The cache is NaN wherever it is not the row's."""
    tokens, blocks = 16, (at + 1) // 16 + 2
    tables = (torch.randperm(blocks, generator=torch.Generator().manual_seed(1)) + 1).int()[None]
    own = torch.arange(at)
    cache = torch.full((form.layers, 2, blocks + 2, tokens, form.kv_heads, HEAD), float("nan"), dtype=BF16)
    before = random(form.layers, 2, at, form.kv_heads, HEAD, dtype=BF16, seed=7)
    cache[:, :, tables[0, own // tokens].long(), own % tokens] = before
    other = cache.float()
    for position in (at, at + 1):
        x = random(1, 1, form.width, dtype=BF16, seed=100 + position)
        cos, sin = (random(1, 1, 1, HEAD, dtype=BF16, seed=n + position) for n in (900, 901))
        place = tables, torch.tensor([[position]], dtype=dtype)
        assert paged_pass.refusal(stack, x, cache, *place) is None
        got = paged_pass.paged_pass(stack, x, cos, sin, cache, *place, blocks)
        given = wide(stack), x.float(), cos.float(), sin.float(), other, *place, blocks
        assert error(got, reference.paged_pass(*given)) < 0.015
    assert torch.equal(cache.isnan(), other.isnan())
    assert error(cache.nan_to_num(), other.nan_to_num()) < 0.01
