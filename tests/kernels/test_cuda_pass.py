"""Passes of one row over all layers in one kernel, on a CPU (cuda_on_cpu.h; all blocks run at once): their results are
right, and what they do not take goes to Triton."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels.against import random
from kernels.cpu_machine import OnCpu
from sonant.kernels import dispatch, ops
from sonant.kernels.cuda import compiler
from sonant.kernels.cuda.kernel import CudaForm, CudaKernel
from sonant.kernels.gpu import Gpu, planning_for
from sonant.kernels.reference import FrameLayer, FrameStack

pytest.importorskip("triton")
from kernels.pass_cases import BF16, POSITIONS, check_frames, check_steps, stack_of, without_opening
from sonant.kernels.cuda import frame_pass, paged_pass, single_pass
from sonant.kernels.cuda.single_pass import HEAD, Form
from sonant.kernels.recorded_launches import AnyForm, LaunchRecorder, launches_recorded
from sonant.kernels.triton import frame_pass as frame_chain
from sonant.kernels.triton import paged_pass as paged_chain

H200, LAYERS = Gpu("NVIDIA H200", (9, 0)), 2
# a quarter of the blocks, and a ring so small that it is reused many times
SMALL = {"inner": 1024, "layers": LAYERS, "kv_heads": 2, "pages": 5, "page": 8192}
FRAME = replace(frame_pass._USUAL, **SMALL, codes=256)
PAGED = replace(paged_pass._form(1024, 1024, LAYERS, 2), **SMALL)
compiled = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(frame_pass, "_FORMS", (FRAME,))
    monkeypatch.setattr(paged_pass, "_FORMS", (PAGED,))
    with torch.no_grad():
        yield


@pytest.fixture
def on_cpu(machine: OnCpu, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.take_over(monkeypatch)


@compiled
@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"ahead": 2, "replicas": 3, "held": 0}, {"held": 96}])
def test_a_frames_passes_one_after_another(
    changes: dict[str, int], machine: OnCpu, on_cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = replace(FRAME, **changes)
    monkeypatch.setattr(frame_pass, "_FORMS", (form,))
    without_opening(monkeypatch)
    before = machine.seed
    check_frames(form, stack_of(form))
    assert machine.seed == before + 3


@compiled
@pytest.mark.slow
def test_a_frames_opening_pair_in_one_launch(machine: OnCpu, on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    form = replace(FRAME, kv_heads=4, codes=512)
    monkeypatch.setattr(frame_pass, "_FORMS", (form,))
    before = machine.seed
    check_frames(form, stack_of(form))
    assert machine.seed == before + 2  # for three positions


@compiled
@pytest.mark.slow
@pytest.mark.parametrize(("at", "dtype", "held"), [(0, torch.int32, 0), (37, torch.int64, 96), (1301, torch.int32, 0)])
def test_a_pass_over_a_paged_cache(
    at: int, dtype: torch.dtype, held: int, on_cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = replace(PAGED, held=held)
    monkeypatch.setattr(paged_pass, "_FORMS", (form,))
    check_steps(form, stack_of(form), at, dtype)


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


def test_a_frames_opening_pair_is_two_launches_where_its_kernel_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[int] = []
    monkeypatch.setattr(CudaKernel, "launch", lambda self, *given: launched.append(self.program.defines["ROWS"]))
    stack = stack_of(FRAME)
    x, cache, head = frame_call(stack, x=torch.zeros(1, 2, FRAME.width, dtype=BF16))
    turns = torch.zeros(1, 2, 1, HEAD, dtype=BF16)
    frame_pass.frame_pass(stack, x, turns, turns, cache, 0, head)
    without_opening(monkeypatch)
    frame_pass.frame_pass(stack, x, turns, turns, cache, 0, head)
    assert launched == [2, 1, 1]


def test_a_second_stack_leaves_the_processors_to_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at once could wait for each other for ever. When the first stack is gone, the second gets the processors."""
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
    pair, turns = x.expand(1, 2, -1).contiguous(), torch.empty(1, 2, 1, HEAD, device="meta")
    pages = torch.empty(LAYERS, 2, 3, 16, 2, HEAD, dtype=BF16, device="meta")
    tables, turn = torch.zeros(1, 3, dtype=torch.int32, device="meta"), torch.empty(1, 1, 1, HEAD, device="meta")
    with planning_for(H200), launches_recorded(LaunchRecorder(H200, found.append)):
        assert ops.has_whole_pass("frame_pass", x) and ops.has_whole_pass("paged_pass", x)
        assert not ops.has_whole_pass("frame_pass", x.expand(2, 1, -1))
        assert ops.frame_pass(stack, pair, turns, turns, cache, 0, head).shape == (1, FRAME.codes)
        assert ops.frame_pass(stack, x, turn, turn, cache, 2, head).shape == (1, FRAME.codes)
        made = ops.paged_pass(on_meta(PAGED), x, turn, turn, pages, tables, tables[:, :1], 3)
    dispatch.choose.cache_clear()
    assert made.shape == x.shape
    programs = [form.program for form in found if isinstance(form, CudaForm)]
    forms = frame_pass.opening(FRAME), FRAME, PAGED
    assert programs == [single_pass.pass_kernel(form).program for form in forms] and len(found) == 3
