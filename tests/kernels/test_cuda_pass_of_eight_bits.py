"""Passes of one row in one kernel over weights of eight bits, on a CPU: right, and the default for such weights."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels.cpu_machine import OnCpu
from sonant.bench.kernels.pass_cases import PassCases
from sonant.kernels import dispatch, ops
from sonant.kernels.cuda import compiler
from sonant.kernels.cuda.kernel import CudaForm
from sonant.kernels.gpu import Gpu, planning_for
from sonant.kernels.reference import FrameLayer, FrameStack, Heads, QuantizedWeight, quantize
from sonant.kernels.reference.quantized import E4M3
from sonant.models.workload import StackWorkload

pytest.importorskip("triton")
from kernels.pass_cases import (
    BF16,
    POSITIONS,
    Drawn,
    check_frames,
    check_steps,
    stack_of,
    weight_of_eight_bits,
    without_opening,
)
from sonant.kernels.cuda import frame_pass, paged_pass, single_pass
from sonant.kernels.cuda.single_pass import HEAD, Form, in_eight_bits
from sonant.kernels.recorded_launches import AnyForm, LaunchRecorder, launches_recorded

pytestmark = pytest.mark.usefixtures("no_gradients")

H200, LAYERS = Gpu("NVIDIA H200", (9, 0)), 2
FRAME, TALKER, SMALL_TALKER = frame_pass._FORMS[1], *paged_pass._FORMS[2:]
# half of the blocks, and a ring so small that it is reused many times
SMALL = {"inner": 1024, "layers": LAYERS, "kv_heads": 4, "pages": 5}
compiled = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")


@pytest.fixture
def on_cpu(machine: OnCpu, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.take_over(monkeypatch)


def least_numbers(columns: int, depth: int, seed: int) -> QuantizedWeight:
    """Only numbers that are subnormal in e4m3, and in the formats that they are converted to before a product."""
    bits = torch.randint(1, 8, (columns, depth), generator=torch.Generator().manual_seed(seed))
    signs = torch.randint(0, 2, (columns, depth), generator=torch.Generator().manual_seed(seed + 1)) * 128
    scale = torch.full((columns,), 2**9 / 4.5 / depth**0.5)
    return QuantizedWeight((bits + signs).to(torch.uint8).view(E4M3), scale)


def every_number(columns: int, depth: int, seed: int) -> QuantizedWeight:
    """All 254 numbers that are not NaN, equally likely."""
    bits = torch.randint(0, 254, (columns, depth), generator=torch.Generator().manual_seed(seed))
    values = (bits + (bits >= 127).int()).to(torch.uint8).view(E4M3)
    assert values.float().isfinite().all()
    return QuantizedWeight(values, 1 / (values.float().norm(dim=1)))


@compiled
@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"ahead": 2, "replicas": 3, "inner": 3072, "held": 0}, {"held": 96}])
def test_a_frames_passes_one_after_another(
    changes: dict[str, int], machine: OnCpu, on_cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = replace(FRAME, **(SMALL | {"codes": 512} | changes))
    monkeypatch.setattr(frame_pass, "_FORMS", (form,))
    without_opening(monkeypatch)
    before = machine.seed
    check_frames(form, stack_of(form, weight_of_eight_bits))
    assert machine.seed == before + 3


@compiled
@pytest.mark.slow
@pytest.mark.parametrize("drawn", [least_numbers, every_number])
def test_every_number_of_eight_bits_counts_for_what_it_is(
    drawn: Drawn, on_cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = replace(FRAME, **(SMALL | {"codes": 512}))
    monkeypatch.setattr(frame_pass, "_FORMS", (form,))
    check_frames(form, stack_of(form, drawn))


@compiled
@pytest.mark.slow
def test_a_frames_opening_pair_in_one_launch(machine: OnCpu, on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    form = replace(FRAME, **(SMALL | {"codes": 512}))
    monkeypatch.setattr(frame_pass, "_FORMS", (form,))
    before = machine.seed
    check_frames(form, stack_of(form, weight_of_eight_bits))
    assert machine.seed == before + 2  # for three positions


@compiled
@pytest.mark.slow
@pytest.mark.parametrize(("at", "dtype", "held"), [(0, torch.int32, 0), (37, torch.int64, 96)])
def test_a_pass_over_a_paged_cache(
    at: int, dtype: torch.dtype, held: int, on_cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_words = paged_pass._form(1024, 1024, LAYERS, 4).own_words
    form = replace(SMALL_TALKER, **SMALL, own_words=own_words, held=held)
    monkeypatch.setattr(paged_pass, "_FORMS", (form,))
    check_steps(form, stack_of(form, weight_of_eight_bits), at, dtype)


@compiled
@pytest.mark.slow
def test_the_published_predictors_shape(on_cpu: None) -> None:
    """With all 128 blocks, but only two layers."""
    form = replace(FRAME, layers=LAYERS)
    check_frames(form, stack_of(form, weight_of_eight_bits))


@compiled
@pytest.mark.slow
@pytest.mark.parametrize("form", [TALKER, SMALL_TALKER], ids=["1.7B", "0.6B"])
def test_the_published_talkers_shapes(form: Form, on_cpu: None) -> None:
    form = replace(form, layers=LAYERS)
    check_steps(form, stack_of(form, weight_of_eight_bits), 37, torch.int32)


def on_meta(form: Form) -> FrameStack:
    def part(shape: tuple[int, ...]) -> Tensor | QuantizedWeight:
        if len(shape) == 1:
            return torch.empty(shape, dtype=BF16, device="meta")
        scale = torch.empty(shape[0], device="meta")
        return QuantizedWeight(torch.empty(shape, dtype=E4M3, device="meta"), scale)

    layer = FrameLayer(*(part(shape) for shape in form.shapes))
    gain = torch.empty(form.width, dtype=BF16, device="meta")
    return FrameStack((layer,) * LAYERS, gain, form.heads, form.kv_heads, 1e-6)


def frame_call(form: Form) -> tuple[Tensor, Tensor, Tensor]:
    shapes = (1, 1, form.width), (LAYERS, 2, 1, POSITIONS, form.kv_heads, HEAD), (form.codes, form.width)
    x, cache, head = (torch.empty(shape, dtype=BF16, device="meta") for shape in shapes)
    return x, cache, head


def test_all_weights_of_layers_are_of_eight_bits_or_none() -> None:
    stack, (x, cache, head) = on_meta(FRAME), frame_call(FRAME)
    assert frame_pass.refusal(stack, x, cache, head) is None
    first, second = stack.layers
    half = first._replace(down=torch.empty(first.down.shape, dtype=BF16, device="meta"))
    told = frame_pass.refusal(stack._replace(layers=(half, second)), x, cache, head)
    assert told == "some weights are of eight bits, and others are not"
    assert frame_pass.refusal(stack, x, cache, quantize(torch.ones(head.shape))) == "a head is of eight bits"
    assert isinstance(first.qkv, QuantizedWeight)
    for values, scale in (
        (first.qkv.values.view(torch.float8_e5m2), first.qkv.scale),
        (first.qkv.values, first.qkv.scale.double()),
        (first.qkv.values, torch.empty(2 * FRAME.qkv, device="meta")[::2]),
    ):
        other = first._replace(qkv=QuantizedWeight(values, scale))
        told = frame_pass.refusal(stack._replace(layers=(other, second)), x, cache, head)
        assert "e4m3 with float32 scales, in one piece" in (told or "")


def test_more_layers_than_a_kernels_arguments_have_room_for_are_refused() -> None:
    stack, (x, cache, head) = on_meta(FRAME), frame_call(FRAME)
    most = frame_pass.form_of(stack).most_layers
    for layers, fits in ((most, True), (most + 1, False)):
        deep = stack._replace(layers=stack.layers[:1] * layers)
        assert single_pass.pass_kernel(frame_pass.form_of(deep)).arguments.size <= 4096 or not fits
        told = frame_pass.refusal(deep, x, cache[:1].expand(layers, -1, -1, -1, -1, -1).contiguous(), head)
        assert (told is None) if fits else f"through {layers} layers" in (told or "")


def test_they_are_taken_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (frame_pass.VARIABLE, paged_pass.VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    pages = torch.empty(LAYERS, 2, 3, 16, TALKER.kv_heads, HEAD, dtype=BF16, device="meta")
    place = torch.zeros(1, 3, dtype=torch.int32, device="meta"), torch.zeros(1, 1, dtype=torch.int32, device="meta")
    x = torch.zeros(1, 1, TALKER.width, dtype=BF16, device="meta")
    assert frame_pass.takes(on_meta(FRAME), *frame_call(FRAME))
    assert paged_pass.takes(on_meta(TALKER), x, pages, *place)


def test_eight_bits_keep_as_many_bytes_on_their_way() -> None:
    wide = frame_pass._USUAL
    assert in_eight_bits(wide) == FRAME and FRAME.weight_bytes == 1 and FRAME.page == 8192
    for count in ("pages", "ahead", "kept"):
        assert getattr(FRAME, count) * FRAME.page == getattr(wide, count) * wide.page
    for form in (*frame_pass._FORMS, *map(frame_pass.opening, frame_pass._FORMS), *paged_pass._FORMS):
        assert form.shared_bytes <= 227 << 10 and single_pass.pass_kernel(form).arguments.size <= 4096


def test_the_benchmarks_cases_in_eight_bits_are_for_these_kernels() -> None:
    cases, turn = PassCases(torch.device("cpu"), BF16, "fp8"), torch.zeros(1, 1, 1, HEAD, dtype=BF16)
    heads = Heads(None, None, turn, turn, 16, 8, 1e-6)
    predictor = StackWorkload("predictor", 1024, 3072, 16, 8, HEAD, 2048, POSITIONS, per_frame=True)
    stack, x, _, _, cache, _, head = cases.frame(predictor, 1, heads).make().args
    assert frame_pass.refusal(stack, x, cache, head) is None
    talker = StackWorkload("talker", 1024, 3072, 16, 8, HEAD, 3072, 40, per_frame=False)
    stack, x, _, _, cache, tables, positions, _ = cases.paged(talker, 1, heads).make().args
    assert paged_pass.refusal(stack, x, cache, tables, positions) is None
    assert paged_pass.form_of(stack).weight_bytes == 1


def test_a_form_that_cannot_be_built_keeps_no_other_from_running(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    nvcc = compiler.Compiler("/somewhere/nvcc", "Build 1")
    monkeypatch.setattr(compiler, "find_compiler", lambda: nvcc)
    program = single_pass.pass_kernel(FRAME).program
    note = compiler._note_path(program, 90)
    note.parent.mkdir(parents=True)
    compiler._note(note, nvcc, "no room")
    assert compiler.refused(program, 90) == "no room" and frame_pass.obstacle(H200) is None


def test_passes_that_are_rehearsed_tell_which_programs_they_need(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiler, "find_compiler", lambda: compiler.Compiler("/somewhere/nvcc", "Build 1"))
    dispatch.choose.cache_clear()
    found: list[AnyForm] = []
    x, cache, head = frame_call(FRAME)
    talker_x = torch.zeros(1, 1, TALKER.width, dtype=BF16, device="meta")
    pages = torch.empty(LAYERS, 2, 3, 16, TALKER.kv_heads, HEAD, dtype=BF16, device="meta")
    tables, turn = torch.zeros(1, 3, dtype=torch.int32, device="meta"), torch.empty(1, 1, 1, HEAD, device="meta")
    with planning_for(H200), launches_recorded(LaunchRecorder(H200, found.append)):
        assert ops.frame_pass(on_meta(FRAME), x, turn, turn, cache, 0, head).shape == (1, FRAME.codes)
        made = ops.paged_pass(on_meta(TALKER), talker_x, turn, turn, pages, tables, tables[:, :1], 3)
    dispatch.choose.cache_clear()
    assert made.shape == talker_x.shape
    programs = [form.program for form in found if isinstance(form, CudaForm)]
    expected = [single_pass.pass_kernel(replace(form, layers=LAYERS)).program for form in (FRAME, TALKER)]
    assert programs == expected and len(found) == 2
    assert {program.defines["WEIGHT_BYTES"] for program in programs} == {1}
