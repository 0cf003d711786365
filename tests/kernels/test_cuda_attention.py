"""Attention in CUDA C++ against the reference on a GPU: a thousand drawn shapes, and under CUDA graphs.

On a machine without a GPU test_cuda_on_cpu.py runs the same source. The whole file takes half a minute on an H200.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from kernels.paged_cases import (
    RELATIVE_ERROR,
    Shape,
    cache_error,
    draw,
    error_of,
    exact_attention,
    exact_step,
    prefill_call,
    step_call,
)
from sonant.kernels import dispatch, ops
from sonant.kernels.cuda import attention
from sonant.kernels.cuda.kernel import CudaKernel
from sonant.kernels.gpu import gpu_of

pytestmark = pytest.mark.gpu
STEPS, PREFILLS, PART = 700, 300, 50


@pytest.fixture(autouse=True)
def in_cuda() -> Iterator[None]:
    gpu = gpu_of(torch.device("cuda"))
    assert gpu is not None
    if (obstacle := attention.obstacle(gpu)) is not None:
        pytest.skip(obstacle)
    for dim, kv_bytes in product((64, 128), (2, 1)):
        for kernel in every_kernel(dim, kv_bytes):
            assert kernel.is_ready(torch.device("cuda")), f"{kernel.entry} was not built: see the log"
    with torch.inference_mode():
        yield


def every_kernel(dim: int, kv_bytes: int) -> list[CudaKernel]:
    steps = [attention.decode_kernel(dim, form, kv_bytes, share) for form, share in product(attention.FORMS, (8, 16))]
    return steps + [attention.prefill_kernel(dim, queries, kv_bytes) for queries in (64, 128)]


def drawn(seed: int, *, queries: int) -> Shape:
    """A drawn shape: one in eight has long rows, one in three a cache of eight bits."""
    rng = random.Random(seed)
    long = seed % 8 == 0
    shape = draw(rng, most_rows=3 if long else 8, most_length=3000 if long else 500, most_queries=queries)
    return replace(shape, eight=seed // 2 % 3 == 0)


@pytest.mark.parametrize("first", range(0, STEPS, PART))
def test_steps(first: int) -> None:
    for seed in range(first, first + PART):
        shape = drawn(seed, queries=1)
        call = step_call(shape, seed, "cuda")
        own = call[2].clone()
        expected = exact_step(*call)
        forms, early = attention.FORMS, seed % 3 > 0
        options = {"splits": seed % 9, "form": forms[seed % len(forms)]} if seed % 2 else {}  # 0: by rule
        got = attention.paged_step(*call[:2], own, *call[3:], **options, early=early)
        assert error_of(got, expected) < RELATIVE_ERROR, (seed, shape, error_of(got, expected))
        assert cache_error(own, call[2]) < shape.cache_error, (seed, shape)


@pytest.mark.parametrize("first", range(0, PREFILLS, PART))
def test_prefills(first: int) -> None:
    for seed in range(first, first + PART):
        shape = drawn(seed, queries=200)
        call = prefill_call(shape, seed, "cuda")
        error = error_of(attention.paged_attention(*call), exact_attention(*call))
        assert error < RELATIVE_ERROR, (seed, shape, error)


@pytest.mark.parametrize("rows", [1, 8, 40])
def test_one_graph_serves_every_length(rows: int) -> None:
    """The graph is captured with empty rows and replayed with long ones, through the dispatcher as in an engine."""
    longest = Shape(16, 8, 128, 16, (2000,) * rows, 1, False, True, 0)
    qkv, heads, cache, tables, _, width = step_call(longest, 3, "cuda")
    at = torch.zeros(rows, 1, dtype=torch.int32, device="cuda")

    def step() -> Tensor:
        return ops.paged_step(qkv, heads, cache, tables, at, width)

    assert dispatch.pick("paged_step", qkv) is attention.paged_step
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    rng = random.Random(rows)
    for _ in range(6):
        at.copy_(torch.tensor([[rng.randrange(2000)] for _ in range(rows)]))
        before = cache.clone()
        graph.replay()
        expected = exact_step(qkv, heads, before, tables, at, width)
        assert error_of(out, expected) < RELATIVE_ERROR


def test_one_graph_of_a_prefill_serves_every_length() -> None:
    shape = Shape(16, 8, 128, 16, (900, 900), 64, True, False, 0)
    q, cache, tables, positions, width = prefill_call(replace(shape), 1, "cuda")
    at = torch.zeros_like(positions)
    ops.paged_attention(q, cache, tables, at, width)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = ops.paged_attention(q, cache, tables, at, width)
    for start in ((0, 0), (5, 700), (900, 33)):
        at.copy_(torch.tensor(start, device="cuda")[:, None] + torch.arange(64, device="cuda"))
        graph.replay()
        assert error_of(out, exact_attention(q, cache, tables, at, width)) < RELATIVE_ERROR


def test_launches_go_to_the_current_stream() -> None:
    shape = Shape(16, 8, 128, 16, (300, 20), 1, False, True, 0)
    call = step_call(shape, 1, "cuda")
    own = call[2].clone()
    expected = exact_step(*call)
    late = torch.zeros_like(call[0])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        late.copy_(call[0])  # only a launch that waits for this copy sees it
        got = attention.paged_step(late, call[1], own, *call[3:])
    stream.synchronize()
    assert error_of(got, expected) < RELATIVE_ERROR


def test_what_the_kernels_do_not_take_goes_to_triton() -> None:
    shape = Shape(4, 2, 128, 16, (70, 3), 4, True, False, 0)
    q, cache, tables, positions, width = prefill_call(shape, 1, "cuda")
    expected = exact_attention(q, cache, tables, positions, width)
    wide = attention.paged_attention(q.float(), cache.float(), tables, positions, width)
    assert wide.dtype == torch.float32 and error_of(wide.bfloat16(), expected) < RELATIVE_ERROR
