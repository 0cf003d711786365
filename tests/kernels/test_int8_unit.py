"""Residual units of eight bits: how inputs are rounded, the reference, the CUDA source on a CPU, and what it takes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.hopper_on_cpu import HopperOnCpu
from kernels.unit_cases import UnitCall, error_of, exact, unit_call
from sonant.kernels import reference
from sonant.kernels.cuda import conv, int8_unit, unit
from sonant.kernels.cuda.compiler import build, find_compiler
from sonant.kernels.gpu import Gpu, planning_for

pytest.importorskip("triton")
from sonant.kernels.triton import unit as triton_unit

pytestmark = pytest.mark.usefixtures("no_gradients")

needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")
H200, A100 = Gpu("NVIDIA H200", (9, 0)), Gpu("NVIDIA A100", (8, 0))


@pytest.fixture
def on_cpu(hopper: HopperOnCpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run CUDA kernels on the CPU, and the reference in place of Triton's kernels."""
    from sonant.kernels.triton import conv as triton_conv
    from sonant.kernels.triton import int8_lines

    hopper.take_over(monkeypatch)
    monkeypatch.setattr(int8_lines, "int8_lines", reference.int8_lines)
    monkeypatch.setattr(triton_conv, "causal_conv", reference.causal_conv)


def call_of(channels: int, batch: int, steps: int, dilation: int, *, past: bool = True) -> UnitCall:
    call = unit_call(channels, batch, steps, dilation, past=past, seed=steps)
    largest = call.active.abs().amax((0, 1)).float() * 0.9  # so that some values are clipped
    return call._replace(unit=call.unit._replace(int8=reference.int8_weight(call.unit.wide, largest)))


def test_results_are_near_those_of_sixteen_bits() -> None:
    call = call_of(192, 2, 80, 3)
    for near, expected in zip(reference.int8_unit(*call), exact(call), strict=True):
        assert 1e-3 < error_of(near, expected) < 4e-2


def test_pieces_are_rounded_like_the_whole() -> None:
    call = call_of(192, 1, 90, 1)
    whole = reference.int8_unit(*call)
    assert call.past is not None
    line, pieces, at = torch.cat([call.past, call.active], 1), [], 0
    for steps in (7, 50, 33):
        past, active = line[:, at : at + 6], line[:, at + 6 : at + 6 + steps]
        pieces.append(reference.int8_unit(*call._replace(x=call.x[:, at : at + steps], active=active, past=past)))
        at += steps
    assert all(torch.equal(torch.cat([piece[n] for piece in pieces], 1), whole[n]) for n in range(2))


@pytest.mark.parametrize(("past", "channels"), [(True, 384), (False, 384), (True, 200)])
def test_inputs_are_rounded_by_the_kernel_as_by_the_book(past: bool, channels: int) -> None:
    from sonant.kernels.triton.int8_lines import int8_lines

    call = unit_call(channels, 2, 70, 9, past=past)
    inverse = 40 * torch.rand(channels) + 20  # three of them become 1, for halves and a value that is clipped
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
    ("channels", "batch", "steps", "dilation", "past"),
    [
        (384, 1, 300, 9, True),  # two tiles in a row, the second not full
        (384, 2, 256, 1, True),
        (384, 1, 40, 3, False),  # silence before
        (192, 1, 400, 9, True),  # one kernel; inputs are one and a half lines
        (192, 3, 100, 1, False),
    ],
)
def test_the_kernels_source_is_the_reference(
    channels: int, batch: int, steps: int, dilation: int, past: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conv, "PROCESSORS", 2)
    call = call_of(channels, batch, steps, dilation, past=past)
    assert unit.refusal(*call) is None
    for got, expected in zip(int8_unit.residual_unit(*call), reference.int8_unit(*call), strict=True):
        # Sums are integers, so results differ only by where they are rounded to bfloat16.
        assert error_of(got, expected.float()) < 6e-3
    nothing, again = int8_unit.residual_unit(*call, keep=False)
    assert torch.equal(again, got) and (nothing.numel() == 0 or channels > 192)


def on_meta(part: Any) -> Any:
    if isinstance(part, Tensor):
        return part.to("meta")
    return type(part)(*map(on_meta, part)) if isinstance(part, tuple) else part


@pytest.mark.parametrize(
    ("channels", "rows", "steps", "gpu", "takes"),
    [
        (384, 64, 512, H200, True),
        (192, 64, 10240, H200, True),
        (384, 64, 512, A100, False),
        (384, 1, 512, H200, False),  # too few tiles
        (384, 64, 32, H200, False),  # too much of each tile is empty
        (96, 64, 512, H200, False),
    ],
)
def test_many_values_on_hopper_are_taken(
    channels: int, rows: int, steps: int, gpu: Gpu, takes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8_unit, "obstacle", lambda g: None if g == H200 else "another")
    call = on_meta(call_of(channels, 1, 1, 3, past=False))
    x = torch.empty(rows, steps, channels, dtype=torch.bfloat16, device="meta")
    call = call._replace(x=x, active=x)
    with planning_for(gpu):
        assert int8_unit.takes(*call) is takes
        assert not int8_unit.takes(*call._replace(unit=call.unit._replace(int8=None)))
        assert not int8_unit.takes(*call._replace(active=x.mT.contiguous().mT))


def test_where_they_are_not_taken_sixteen_bits_compute() -> None:
    call = call_of(192, 1, 20, 1)
    without = call._replace(unit=call.unit._replace(int8=None))
    assert all(map(torch.equal, reference.residual_unit(*call), reference.residual_unit(*without)))
    assert all(map(torch.equal, triton_unit.residual_unit(*call), triton_unit.residual_unit(*without)))


@pytest.mark.parametrize(("fault", "right"), [(0.0, True), (0.1, False), (float("nan"), False)])
def test_a_kernel_that_is_wrong_here_is_not_used(
    fault: float, right: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def made(*given: Any) -> tuple[Tensor, ...]:
        return tuple((1 + fault) * t for t in reference.int8_unit(*given))

    monkeypatch.setattr(int8_unit, "residual_unit", made)
    assert int8_unit._is_right(192, torch.device("cpu")) is right
    assert len(caplog.records) == (0 if right else 1)


def test_shared_memory_is_what_a_program_can_have() -> None:
    assert all(layout.shared_bytes <= 227 << 10 for layout in int8_unit.LAYOUTS.values())


@pytest.mark.slow
@pytest.mark.skipif(find_compiler() is None, reason="no nvcc here")
def test_it_compiles_for_hopper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for program in int8_unit.programs():
        assert b"causal_conv" in build(program, 90).read_bytes()
