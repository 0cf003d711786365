"""Convolutions of eight bits: how inputs are rounded, the reference, the CUDA source on a CPU, and who takes what."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.hopper_on_cpu import HopperOnCpu
from kernels.unit_cases import UnitCall, error_of, unit_call, wide
from sonant.kernels import reference
from sonant.kernels.cuda import conv, int8_conv
from sonant.kernels.cuda.compiler import build, find_compiler
from sonant.kernels.gpu import Gpu, planning_for
from sonant.kernels.reference import Int8Weight, Unit

pytest.importorskip("triton")
needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")
H200, A100 = Gpu("NVIDIA H200", (9, 0)), Gpu("NVIDIA A100", (8, 0))
CHANNELS = int8_conv.MULTIPLE


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def on_cpu(hopper: HopperOnCpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rounding is the reference's there."""
    from sonant.kernels.triton import int8_lines

    hopper.take_over(monkeypatch)
    monkeypatch.setattr(int8_lines, "int8_lines", reference.int8_lines)


def call_of(batch: int, steps: int, dilation: int, *, past: bool = True, channels: int = CHANNELS) -> UnitCall:
    call = unit_call(channels, batch, steps, dilation, past=past, seed=steps)
    largest = call.active.abs().amax((0, 1)).float() * 0.9  # so that some are cut
    return call._replace(unit=call.unit._replace(int8=reference.int8_weight(call.unit.wide, largest)))


def arguments(call: UnitCall) -> tuple[Any, ...]:
    unit = call.unit
    return call.active, unit.int8, unit.wide_bias, call.past, unit.dilation, unit.between


def test_sums_are_near_those_of_sixteen_bits() -> None:
    call = call_of(2, 80, 3)
    unit = call.unit
    near = reference.int8_conv(*arguments(call))
    _, exact = reference.causal_conv(
        wide(call.active), wide(unit.wide), wide(unit.wide_bias), wide(call.past), 3, snake=wide(unit.between)
    )
    assert 1e-3 < error_of(near, exact) < 3e-2


def test_pieces_are_rounded_like_the_whole() -> None:
    call = call_of(1, 90, 1)
    whole = reference.int8_conv(*arguments(call))
    assert call.past is not None
    line, pieces, at = torch.cat([call.past, call.active], 1), [], 0
    for steps in (7, 50, 33):
        past, piece = line[:, at : at + 6], line[:, at + 6 : at + 6 + steps]
        pieces.append(reference.int8_conv(piece, *arguments(call)[1:3], past, *arguments(call)[4:]))
        at += steps
    assert torch.equal(torch.cat(pieces, 1), whole)


@pytest.mark.parametrize(("past", "channels"), [(True, 384), (False, 384), (True, 200)])
def test_inputs_are_rounded_by_the_kernel_as_by_the_book(past: bool, channels: int) -> None:
    from sonant.kernels.triton.int8_lines import int8_lines

    call = unit_call(channels, 2, 70, 9, past=past)
    inverse = 40 * torch.rand(channels) + 20  # halves and what is cut among them
    call.active[0, 0, :4] = torch.tensor([0.5, 1.5, -2.5, 300.0])
    inverse[:3] = 1.0
    given = (call.active, call.past, call.unit.history, inverse)
    lines = int8_lines(*given)
    assert lines.dtype == torch.int8 and torch.equal(lines, reference.int8_lines(*given))
    assert lines[0, 54, :4].tolist() == [0, 2, -2, 127]
    assert past or not lines[:, :54].any()


@pytest.mark.slow
@needs_gxx
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    ("batch", "steps", "dilation", "past"), [(1, 300, 9, True), (2, 256, 1, True), (1, 40, 3, False)]
)
def test_the_kernels_source_is_the_reference(batch: int, steps: int, dilation: int, past: bool) -> None:
    call = call_of(batch, steps, dilation, past=past)
    assert int8_conv.refusal(*arguments(call)) is None
    got, expected = int8_conv.int8_conv(*arguments(call)), reference.int8_conv(*arguments(call))
    # sums are whole numbers: what is made of them differs by where bfloat16 is rounded to
    assert error_of(got, expected.float()) < 5e-3


def on_meta(part: Any) -> Any:
    if isinstance(part, Tensor):
        return part.to("meta")
    return type(part)(*map(on_meta, part)) if isinstance(part, tuple) else part


@pytest.mark.parametrize(
    ("rows", "steps", "gpu", "takes"),
    [(64, 512, H200, True), (64, 512, A100, False), (1, 512, H200, False), (64, 32, H200, False)],
)
def test_many_values_on_hopper_are_taken(
    rows: int, steps: int, gpu: Gpu, takes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8_conv, "obstacle", lambda g: None if g == H200 else "another")
    call = on_meta(call_of(1, 1, 3))
    active = torch.empty(rows, steps, CHANNELS, dtype=torch.bfloat16, device="meta")
    with planning_for(gpu):
        assert int8_conv.takes(active, *arguments(call)[1:3], None, *arguments(call)[4:]) is takes


def test_other_values_are_refused() -> None:
    call = call_of(1, 10, 3)
    active, weight, bias, past, dilation, between = arguments(call)
    thin = Int8Weight(weight.values[:192, :192], *weight[1:])
    for reason, wrong in {
        "not all values are bfloat16": (active.float(), weight, bias, past, dilation, between),
        "no logarithms": (active, weight, bias, past, dilation, between._replace(log_scale=False)),
        "weights of 192 columns and 192 inputs": (active, thin, bias, past, dilation, between),
        "looks back 60 steps": (active, weight, bias, past, 10, between),
        "not in lines": (active.mT.contiguous().mT, weight, bias, past, dilation, between),
    }.items():
        assert reason in (int8_conv.refusal(*wrong) or "it takes it")


def test_a_unit_without_eight_bits_is_what_it_was() -> None:
    call = call_of(1, 20, 1)
    without = call.unit._replace(int8=None)
    assert isinstance(without, Unit)
    got = reference.residual_unit(call.x, call.active, call.unit, call.past, call.following)
    expected = reference.residual_unit(call.x, call.active, without, call.past, call.following)
    assert all(map(torch.equal, got, expected))


@pytest.mark.parametrize(("fault", "right"), [(0.0, True), (0.1, False), (float("nan"), False)])
def test_a_kernel_that_is_wrong_here_is_not_used(
    fault: float, right: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(int8_conv, "int8_conv", lambda *given: (1 + fault) * reference.int8_conv(*given))
    assert int8_conv._is_right(torch.device("cpu")) is right
    assert len(caplog.records) == (0 if right else 1)


def test_shared_memory_is_what_a_program_can_have() -> None:
    assert int8_conv.LAYOUT.shared_bytes <= 227 << 10


@pytest.mark.slow
@pytest.mark.skipif(find_compiler() is None, reason="no nvcc here")
def test_it_compiles_for_hopper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for program in int8_conv.programs():
        assert b"causal_conv" in build(program, 90).read_bytes()
    assert conv.conv_kernel(int8_conv.LAYOUT).program not in list(conv.programs())
