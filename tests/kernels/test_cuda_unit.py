"""The source of the residual unit's CUDA kernel, run on a CPU by `hopper_on_cpu.h`, computes what the reference does.

Tiles, lines, turns of the warpgroups, rings and barriers are all tested; a GPU's memory model is not.
"""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.hopper_on_cpu import HopperOnCpu
from kernels.unit_cases import UnitCall, error_of, exact, unit_call, wide
from sonant.kernels import reference
from sonant.kernels.cuda import compiler, conv
from sonant.kernels.cuda import unit as cuda_unit
from sonant.kernels.cuda.compiler import build, find_compiler
from sonant.kernels.gpu import Gpu, planning_for
from sonant.kernels.triton import unit as triton_unit

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("no_gradients")
needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")
H200, A100, B200 = Gpu("NVIDIA H200", (9, 0)), Gpu("NVIDIA A100", (8, 0)), Gpu("NVIDIA B200", (10, 0))
ERROR = 1e-2  # results were rounded to bfloat16 five times


@pytest.fixture
def on_cpu(hopper: HopperOnCpu, monkeypatch: pytest.MonkeyPatch) -> None:
    hopper.take_over(monkeypatch)


@pytest.mark.slow
@needs_gxx
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("channels", [96, 192])
@pytest.mark.parametrize(
    ("batch", "steps", "dilation", "past", "processors"),
    [
        (1, 64, 1, True, 132),  # one tile, so with 96 channels two warpgroups have none
        (2, 300, 3, True, 1),  # one block has all tiles, the last of each row not full
        (1, 385, 9, False, 2),  # silence before; blocks with different numbers of tiles
        (1, 54, 9, True, 132),  # as many steps as it looks back
        (1, 7, 3, True, 132),  # fewer steps than it looks back
    ],
)
def test_it_is_the_reference(
    channels: int, batch: int, steps: int, dilation: int, past: bool, processors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conv, "PROCESSORS", processors)
    call = unit_call(channels, batch, steps, dilation, past=past, seed=steps)
    assert cuda_unit.refusal(*call) is None
    got = cuda_unit.residual_unit(*call)
    for made, expected in zip(got, exact(call), strict=True):
        assert error_of(made, expected) < ERROR
    nothing, again = cuda_unit.residual_unit(*call, keep=False)
    assert nothing.numel() == 0 and torch.equal(again, got[1])


@pytest.mark.slow
@needs_gxx
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("channels", [96, 192])
def test_pieces_with_their_past_are_the_whole_to_the_bit(channels: int) -> None:
    call = unit_call(channels, 1, 300, 3)
    whole = cuda_unit.residual_unit(*call)
    past, pieces = call.past, []
    assert past is not None
    for x, active in zip(*(t.split([170, 60, 70], dim=1) for t in (call.x, call.active)), strict=True):
        pieces.append(cuda_unit.residual_unit(*call._replace(x=x, active=active, past=past)))
        past = torch.cat([past, active], dim=1)[:, -call.unit.history :]
    for n in range(2):
        assert torch.equal(torch.cat([piece[n] for piece in pieces], dim=1), whole[n])


@pytest.mark.slow
@needs_gxx
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("channels", [96, 192])
def test_any_number_of_blocks_computes_the_same_bits(channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv, "PROCESSORS", 5)
    call = unit_call(channels, 2, 450, 3)
    whole = cuda_unit.residual_unit(*call)
    for processors in (3, 1):
        monkeypatch.setattr(conv, "PROCESSORS", processors)
        assert all(map(torch.equal, cuda_unit.residual_unit(*call), whole))


@pytest.mark.slow
@pytest.mark.skipif(find_compiler() is None, reason="no nvcc here")
def test_they_compile_for_hopper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for channels in (96, 192):
        kernel = cuda_unit.unit_kernel(channels)
        assert kernel.entry.encode() in build(kernel.program, 90).read_bytes()


def test_shared_memory_is_what_a_program_can_have() -> None:
    assert all(cuda_unit.unit_kernel(channels).shared_bytes <= 227 << 10 for channels in (96, 192))


def test_other_values_are_refused() -> None:
    call = unit_call(96, 2, 128, 9)
    assert cuda_unit.refusal(*call) is None and cuda_unit.refusal(*call._replace(past=None)) is None
    x, unit, past = call.x, call.unit, call.past
    assert past is not None
    for reason, wrong in {
        "not all values are bfloat16": call._replace(x=x.float()),
        "no logarithms": call._replace(following=call.following._replace(log_scale=False)),
        "weights are": call._replace(unit=unit._replace(point=unit.point[:, :, :0])),
        "their inputs last": call._replace(unit=unit._replace(wide=unit.wide.contiguous())),
        "looks back 60 steps": call._replace(unit=unit._replace(dilation=10)),
        "values are not in lines": call._replace(active=x.transpose(0, 1).contiguous().transpose(0, 1)),
        "came before is not in lines": call._replace(past=past.transpose(0, 1).contiguous().transpose(0, 1)),
    }.items():
        assert reason in (cuda_unit.refusal(*wrong) or "it takes it")


def planned(dtype: torch.dtype, batch: int, steps: int, channels: int) -> bool:
    """Whether the kernel takes a unit of such values."""
    call = UnitCall(*(conv.moved(part, torch.device("meta")) for part in unit_call(channels, 1, 1, 3, past=False)))
    values = torch.empty(batch, steps, channels, dtype=dtype, device="meta")
    return cuda_unit.takes(*call._replace(x=values, active=values))


@pytest.mark.parametrize(
    ("gpu", "dtype", "batch", "steps", "channels", "takes"),
    [
        (H200, torch.bfloat16, 64, 1920, 96, True),
        (H200, torch.bfloat16, 64, 10240, 192, True),
        (H200, torch.bfloat16, 1, 1920, 96, False),  # too few tiles
        (H200, torch.bfloat16, 1, 10240, 192, False),
        (H200, torch.bfloat16, 64, 160, 384, False),
        (H200, torch.bfloat16, 64, 640, 192, True),
        (H200, torch.bfloat16, 16, 1920, 96, False),
        (H200, torch.bfloat16, 4096, 40, 96, False),  # too much of each tile is empty
        (H200, torch.bfloat16, 4096, 40, 192, False),
        (H200, torch.float32, 64, 1920, 96, False),
        (A100, torch.bfloat16, 64, 1920, 96, False),
        (B200, torch.bfloat16, 64, 1920, 96, False),
        (None, torch.bfloat16, 64, 1920, 96, False),
    ],
)
def test_many_values_of_the_right_kind_on_hopper_are_taken(
    gpu: Gpu | None, dtype: torch.dtype, batch: int, steps: int, channels: int, takes: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(cuda_unit, "_obstacle", lambda g: None if g == H200 else "another")
    with planning_for(gpu) if gpu else nullcontext():
        assert planned(dtype, batch, steps, channels) is takes


def test_without_a_compiler_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "needs compute capability 9.0" in (cuda_unit.obstacle(A100) or "")
    monkeypatch.setattr(compiler, "find", lambda program, arch: None)
    monkeypatch.setattr(compiler, "find_compiler", lambda: None)
    assert "there is no nvcc" in (cuda_unit.obstacle(H200) or "")


def test_the_reason_is_logged_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(cuda_unit, "_obstacle", cache(cuda_unit._obstacle.__wrapped__))
    with planning_for(A100), caplog.at_level("INFO"):
        assert not any(planned(torch.bfloat16, 64, 1920, 96) for _ in range(3))
    assert [r.getMessage() for r in caplog.records] == [
        "residual units run in Triton, not in CUDA C++: it needs compute capability 9.0, and NVIDIA A100 has 8.0"
    ]


@pytest.mark.parametrize(("fault", "right"), [(0.0, True), (0.1, False), (float("nan"), False)])
def test_a_kernel_that_is_wrong_here_is_not_used(
    fault: float, right: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def made(*given: Any) -> tuple[torch.Tensor, ...]:
        return tuple((1 + fault) * t for t in reference.residual_unit(*given))

    monkeypatch.setattr(cuda_unit, "residual_unit", made)
    assert cuda_unit._is_right(96, torch.device("cpu")) is right
    assert [r.levelname for r in caplog.records] == ([] if right else ["WARNING"])


def test_tritons_convolutions_make_the_same_unit() -> None:
    call = UnitCall(*(wide(part) for part in unit_call(24, 2, 37, 3)))  # the interpreter has no bfloat16
    for one, other in zip(triton_unit.residual_unit(*call), reference.residual_unit(*call), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
