"""Passes of one row over all layers in one kernel, on a CPU (cuda_on_cpu.h; all blocks run at once): right,
and what they do not take goes to Triton."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels.against import random
from kernels.cpu_machine import OnCpu
from sonant.kernels import dispatch, ops, reference
from sonant.kernels.cuda import compiler
from sonant.kernels.cuda.kernel import CudaForm, CudaKernel
from sonant.kernels.gpu import Gpu, planning_for
from sonant.kernels.reference import FrameLayer, FrameStack, QuantizedWeight, quantize

pytest.importorskip("triton")
from sonant.kernels.cuda import frame_pass, paged_pass, single_pass
from sonant.kernels.cuda.single_pass import Form
from sonant.kernels.recorded_launches import AnyForm, LaunchRecorder, launches_recorded
from sonant.kernels.triton import frame_pass as frame_chain
from sonant.kernels.triton import paged_pass as paged_chain

BF16, H200 = torch.bfloat16, Gpu("NVIDIA H200", (9, 0))
HEAD, POSITIONS, LAYERS = 128, 16, 2
# a quarter of the blocks, and a ring that is gone through many times
SMALL = {"inner": 1024, "layers": LAYERS, "kv_heads": 2, "pages": 5, "page": 8192}
FRAME = replace(frame_pass._USUAL, **SMALL, codes=256)
PAGED = replace(paged_pass._form(1024, 1024, LAYERS, 2), **SMALL)
compiled = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(frame_pass, "_USUAL", FRAME)
    monkeypatch.setattr(paged_pass, "_FORMS", (PAGED,))
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> OnCpu:
    return OnCpu(tmp_path_factory.mktemp("cuda_on_cpu"))


@pytest.fixture
def on_cpu(machine: OnCpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(kernel: CudaKernel, device: torch.device, grid: Sequence[int], *values: float) -> None:
        machine.launch(kernel, device, grid, *values)

    monkeypatch.setattr(CudaKernel, "launch", launch)


def weight(columns: int, depth: int, seed: int) -> Tensor:
    return (random(columns, depth, dtype=BF16, seed=seed) / depth**0.5).to(BF16)


def gain(width: int, seed: int) -> Tensor:
    return (1 + 0.1 * random(width, seed=seed)).to(BF16)


def stack_of(form: Form) -> FrameStack:
    made = []
    for n in range(0, 10 * form.layers, 10):
        parts = [gain(*s, n + i) if len(s) == 1 else weight(*s, n + i) for i, s in enumerate(form.shapes)]
        made.append(FrameLayer(*parts))
    return FrameStack(tuple(made), gain(form.width, 8), form.heads, form.kv_heads, 1e-6)


def wide(stack: FrameStack) -> FrameStack:
    layers = tuple(FrameLayer(*(t.float() for t in layer if isinstance(t, Tensor))) for layer in stack.layers)
    return stack._replace(layers=layers, gain=stack.gain.float())


def error(got: Tensor, expected: Tensor) -> float:
    assert got.shape == expected.shape and got.isfinite().all()
    return float((got.double() - expected.double()).norm() / expected.double().norm())


@compiled
@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"ahead": 2, "replicas": 3}])
def test_a_frames_passes_one_after_another(
    changes: dict[str, int], on_cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The opening pair, then one more. What no pass wrote of the cache is NaN; words are as the last pass left them."""
    form = replace(FRAME, **changes)
    monkeypatch.setattr(frame_pass, "_USUAL", form)
    stack, head = stack_of(form), weight(form.codes, form.width, 9)
    cos, sin = (random(1, POSITIONS, 1, HEAD, dtype=BF16, seed=n) for n in (90, 91))
    cache = torch.full((LAYERS, 2, 1, POSITIONS, form.kv_heads, HEAD), float("nan"), dtype=BF16)
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


@compiled
@pytest.mark.slow
@pytest.mark.parametrize(("at", "dtype"), [(0, torch.int32), (37, torch.int64), (1301, torch.int32)])
def test_a_pass_over_a_paged_cache(at: int, dtype: torch.dtype, on_cpu: None) -> None:
    """Twice, with the next position; what the row does not own of the cache is NaN."""
    stack, tokens, blocks = stack_of(PAGED), 16, (at + 1) // 16 + 2
    tables = (torch.randperm(blocks, generator=torch.Generator().manual_seed(1)) + 1).int()[None]
    own = torch.arange(at)
    cache = torch.full((LAYERS, 2, blocks + 2, tokens, PAGED.kv_heads, HEAD), float("nan"), dtype=BF16)
    before = random(LAYERS, 2, at, PAGED.kv_heads, HEAD, dtype=BF16, seed=7)
    cache[:, :, tables[0, own // tokens].long(), own % tokens] = before
    other = cache.float()
    for position in (at, at + 1):
        x = random(1, 1, PAGED.width, dtype=BF16, seed=100 + position)
        cos, sin = (random(1, 1, 1, HEAD, dtype=BF16, seed=n + position) for n in (900, 901))
        place = tables, torch.tensor([[position]], dtype=dtype)
        assert paged_pass.refusal(stack, x, cache, *place) is None
        got = paged_pass.paged_pass(stack, x, cos, sin, cache, *place, blocks)
        given = wide(stack), x.float(), cos.float(), sin.float(), other, *place, blocks
        assert error(got, reference.paged_pass(*given)) < 0.015
    assert torch.equal(cache.isnan(), other.isnan())
    assert error(cache.nan_to_num(), other.nan_to_num()) < 0.01


@compiled
@pytest.mark.slow
def test_a_row_that_is_nowhere_writes_nothing(on_cpu: None) -> None:
    stack = stack_of(PAGED)
    cache = torch.full((LAYERS, 2, 3, 16, PAGED.kv_heads, HEAD), float("nan"), dtype=BF16)
    x, turn = random(1, 1, PAGED.width, dtype=BF16), random(1, 1, 1, HEAD, dtype=BF16)
    tables = torch.tensor([[1]], dtype=torch.int32)
    got = paged_pass.paged_pass(stack, x, turn, turn, cache, tables, torch.tensor([[16]], dtype=torch.int32), 1)
    assert got.isfinite().all() and cache.isnan().all()


def frame_call(stack: FrameStack, **changes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, cache = torch.zeros(1, 1, FRAME.width, dtype=BF16), torch.zeros(LAYERS, 2, 1, POSITIONS, 2, HEAD, dtype=BF16)
    given = {"x": x, "cache": cache, "head": torch.zeros(FRAME.codes, FRAME.width, dtype=BF16)} | changes
    return given["x"], given["cache"], given["head"]


def test_what_a_frames_kernel_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = stack_of(FRAME)
    assert frame_pass.refusal(stack, *frame_call(stack)) is None
    for changes, reason in (
        ({"x": torch.zeros(2, 1, FRAME.width, dtype=BF16)}, "other shapes"),
        ({"cache": torch.zeros(LAYERS, 2, 1, 8, 2, HEAD, dtype=BF16)}, "other shapes"),
        ({"head": torch.zeros(FRAME.codes, FRAME.width)}, "not all of it is bfloat16"),
        ({"x": torch.zeros(1, 1, 2 * FRAME.width, dtype=BF16)[..., ::2]}, "in one piece"),
    ):
        assert reason in (frame_pass.refusal(stack, *frame_call(stack, **changes)) or "")
    eight = stack.layers[0]._replace(qkv=quantize(torch.zeros(FRAME.qkv, FRAME.width)))
    assert isinstance(eight.qkv, QuantizedWeight)
    told = frame_pass.refusal(stack._replace(layers=(eight, stack.layers[1])), *frame_call(stack))
    assert told == "weights are of eight bits"
    others = stack._replace(heads=8)
    assert frame_pass.refusal(others, *frame_call(stack)) == "weights have other shapes"
    monkeypatch.setattr(frame_chain, "frame_pass", lambda *given: "Triton's")
    x, cache, head = frame_call(stack, x=torch.zeros(2, 1, FRAME.width, dtype=BF16))
    assert frame_pass.frame_pass(stack, x, x, x, cache, 0, head) == "Triton's"


def test_what_a_paged_kernel_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = stack_of(PAGED)
    x, cache = torch.zeros(1, 1, PAGED.width, dtype=BF16), torch.zeros(LAYERS, 2, 3, 16, 2, HEAD, dtype=BF16)
    tables, positions = torch.zeros(1, 3, dtype=torch.int32), torch.zeros(1, 1, dtype=torch.int32)
    assert paged_pass.refusal(stack, x, cache, tables, positions) is None
    eight = cache.to(torch.float8_e4m3fn)
    assert "not all of it is bfloat16" in (paged_pass.refusal(stack, x, eight, tables, positions) or "")
    assert "tables are torch.int64" in (paged_pass.refusal(stack, x, cache, tables.long(), positions) or "")
    assert "another shape" in (paged_pass.refusal(stack, x, cache[:1], tables, positions) or "")
    monkeypatch.setattr(paged_chain, "paged_pass", lambda *given: "Triton's")
    assert paged_pass.paged_pass(stack, x, x, x, eight, tables, positions, 3) == "Triton's"
    monkeypatch.setattr(CudaKernel, "is_ready", lambda self, device: False)
    assert paged_pass.paged_pass(stack, x, x, x, cache, tables, positions, 3) == "Triton's"


def test_a_second_stack_leaves_the_processors_to_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at once could wait for each other for ever. When the first is gone, the second has them."""
    monkeypatch.setattr(CudaKernel, "launch", lambda *given: None)
    first, second = stack_of(FRAME), stack_of(FRAME)
    x, cache, head = frame_call(first)
    turn = torch.zeros(1, 1, 1, HEAD, dtype=BF16)
    frame_pass.frame_pass(first, x, turn, turn, cache, 0, head)
    assert frame_pass.refusal(first, x, cache, head) is None
    assert frame_pass.refusal(second, x, cache, head) == "another stack in this process has the GPU's processors"
    del first
    assert frame_pass.refusal(second, x, cache, head) is None


def test_passes_that_are_rehearsed_tell_which_programs_they_need(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiler, "find_compiler", lambda: compiler.Compiler("/somewhere/nvcc", "Build 1"))
    dispatch.choose.cache_clear()
    found: list[AnyForm] = []

    def on_meta(form: Form) -> FrameStack:
        layer = FrameLayer(*(torch.empty(shape, dtype=BF16, device="meta") for shape in form.shapes))
        return FrameStack((layer,) * LAYERS, torch.empty(form.width, dtype=BF16, device="meta"), 4, 2, 1e-6)

    stack = on_meta(FRAME)
    x, cache, head = (t.to("meta") for t in frame_call(stack))
    pages = torch.empty(LAYERS, 2, 3, 16, 2, HEAD, dtype=BF16, device="meta")
    tables, turn = torch.zeros(1, 3, dtype=torch.int32, device="meta"), torch.empty(1, 1, 1, HEAD, device="meta")
    with planning_for(H200), launches_recorded(LaunchRecorder(H200, found.append)):
        assert ops.has_whole_pass("frame_pass", x) and ops.has_whole_pass("paged_pass", x)
        assert not ops.has_whole_pass("frame_pass", x.expand(2, 1, -1))
        assert ops.frame_pass(stack, x, turn, turn, cache, 0, head).shape == (1, FRAME.codes)
        made = ops.paged_pass(on_meta(PAGED), x, turn, turn, pages, tables, tables[:, :1], 3)
    dispatch.choose.cache_clear()
    assert made.shape == x.shape
    programs = [form.program for form in found if isinstance(form, CudaForm)]
    assert programs == [single_pass.pass_kernel(form).program for form in (FRAME, PAGED)] and len(found) == 2
