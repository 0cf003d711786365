"""The source of the residual unit's CUDA kernel, run on a CPU by `hopper_on_cpu.h`, computes what the reference does.

Tiles, lines, turns of the warpgroups, rings and barriers are all in it; what is not is a GPU's memory model.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.unit_cases import error_of, exact, unit_call
from sonant.kernels import ops, reference
from sonant.kernels.cuda import compiler
from sonant.kernels.cuda import unit as cuda_unit
from sonant.kernels.cuda.compiler import SOURCES, build, find_compiler
from sonant.kernels.cuda.kernel import CudaKernel
from sonant.kernels.gpu import Gpu, planning_for
from sonant.kernels.reference import Snake
from sonant.kernels.triton import unit as triton_unit

pytest.importorskip("triton")
needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")
HERE = Path(__file__).parent
H200, A100, B200 = Gpu("NVIDIA H200", (9, 0)), Gpu("NVIDIA A100", (8, 0)), Gpu("NVIDIA B200", (10, 0))
ERROR = 1e-2  # bfloat16 rounds five times on the way


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@cache
def built(folder: Path, channels: int) -> Any:
    made = folder / f"unit{channels}.so"
    subprocess.run(
        ["g++", "-O2", "-w", "-shared", "-fPIC", "-std=c++17", "-DSONANT_ON_CPU", f"-DCHANNELS={channels}",
         f"-I{SOURCES}", f"-I{HERE}", "-o", str(made), str(HERE / "hopper_on_cpu.cpp")],
        check=True,
    )  # fmt: skip
    return ctypes.CDLL(str(made)).run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hopper_on_cpu")


@pytest.fixture
def on_cpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = iter(range(1000))

    def launch(kernel: CudaKernel, device: torch.device, grid: Sequence[int], *values: float) -> None:
        run = built(folder, kernel.program.defines["CHANNELS"])
        run(
            kernel.arguments.pack(*values), (ctypes.c_int * 3)(*grid), kernel.threads, kernel.shared_bytes, next(seeds)
        )

    monkeypatch.setattr(CudaKernel, "launch", launch)


@pytest.mark.slow
@needs_gxx
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("channels", [96, 192])
@pytest.mark.parametrize(
    ("batch", "steps", "dilation", "past", "following", "processors"),
    [
        (1, 128, 1, True, False, 132),  # one tile: the second warpgroup of 96 channels has none
        (2, 300, 3, True, True, 1),  # six tiles of one block, the last of each row not full
        (1, 385, 9, False, True, 2),  # silence before, nothing after; blocks with different numbers of tiles
        (1, 130, 9, True, False, 132),  # a row's last steps lie in two tiles
        (1, 54, 9, True, True, 132),  # no more steps than it looks back
    ],
)
def test_it_is_the_reference(
    channels: int, batch: int, steps: int, dilation: int, past: bool, following: bool, processors: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(cuda_unit, "_PROCESSORS", processors)
    call = unit_call(channels, batch, steps, dilation, past=past, following=following, seed=steps)
    assert cuda_unit.refusal(*call) is None
    got, tail = cuda_unit.residual_unit(*call)
    expected, kept = exact(call)
    assert error_of(got, expected) < ERROR
    assert (tail is None) == (not past)
    if tail is not None and kept is not None:
        assert error_of(tail, kept) < ERROR


@pytest.mark.slow
@needs_gxx
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("channels", [96, 192])
def test_pieces_with_their_tails_are_the_whole_to_the_bit(channels: int) -> None:
    call = unit_call(channels, 1, 300, 3)
    whole, last = cuda_unit.residual_unit(*call)
    past, pieces = call.past, []
    for piece in call.x.split([170, 60, 70], dim=1):
        made, past = cuda_unit.residual_unit(piece, call.unit, past, None)
        pieces.append(made)
    assert torch.equal(torch.cat(pieces, dim=1), whole)
    assert past is not None and last is not None and torch.equal(past, last)


@pytest.mark.slow
@pytest.mark.skipif(find_compiler() is None, reason="no nvcc here")
def test_it_compiles_for_hopper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for program in cuda_unit.programs():
        assert b"residual_unit" in build(program, 90).read_bytes()


def test_shared_memory_is_what_a_program_can_have() -> None:
    assert all(cuda_unit.unit_kernel(channels).shared_bytes <= 227 << 10 for channels in (96, 192))


def test_other_values_are_refused() -> None:
    call = unit_call(96, 2, 128, 9)
    x, unit, past, following = call
    snake = Snake(torch.ones(96).bfloat16(), torch.ones(96).bfloat16())
    assert cuda_unit.refusal(*call) is None and cuda_unit.refusal(x, unit, None, snake) is None
    assert past is not None
    for reason, wrong in {
        "not all values are bfloat16": (x.float(), unit, past, following),
        "no logarithms": (x, unit._replace(before=snake._replace(log_scale=False)), past, following),
        "weights are": (x, unit._replace(point=unit.point[:, :, :0]), past, following),
        "their inputs last": (x, unit._replace(wide=unit.wide.contiguous()), past, following),
        "looks back 54 steps, at 53": (x[:, :53], unit, past, following),
        "looks back 60 steps": (x, unit._replace(dilation=10), past, following),
        "not in lines": (x, unit, past.transpose(0, 1).contiguous().transpose(0, 1), following),
    }.items():
        assert reason in (cuda_unit.refusal(*wrong) or "it takes it")


@pytest.mark.parametrize(
    ("gpu", "dtype", "batch", "steps", "channels", "takes"),
    [
        (H200, torch.bfloat16, 64, 1920, 96, True),
        (H200, torch.bfloat16, 64, 640, 192, False),  # Triton's is faster
        (H200, torch.bfloat16, 1, 1920, 96, False),  # too few tiles
        (H200, torch.bfloat16, 64, 160, 384, False),
        (H200, torch.bfloat16, 4096, 50, 96, False),
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
    like = torch.empty(0, dtype=dtype, device="meta")
    if gpu is None:
        assert ops.whole_units(like, batch, steps, channels) is takes
        return
    with planning_for(gpu):
        assert ops.whole_units(like, batch, steps, channels) is takes
        with torch.enable_grad():
            assert not ops.whole_units(like, batch, steps, channels)


def test_without_a_compiler_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "needs compute capability 9.0" in (cuda_unit.obstacle(A100) or "")
    monkeypatch.setattr(compiler, "find", lambda program, arch: None)
    monkeypatch.setattr(compiler, "find_compiler", lambda: None)
    assert "there is no nvcc" in (cuda_unit.obstacle(H200) or "")


def test_the_reason_is_logged_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(cuda_unit, "_obstacle", cache(cuda_unit._obstacle.__wrapped__))
    like = torch.empty(0, dtype=torch.bfloat16, device="meta")
    with planning_for(A100), caplog.at_level("INFO"):
        assert not any(ops.whole_units(like, 64, 1920, 96) for _ in range(3))
    assert [r.getMessage() for r in caplog.records] == [
        "residual units run in Triton, not in CUDA C++: it needs compute capability 9.0, and NVIDIA A100 has 8.0"
    ]


@pytest.mark.parametrize(("fault", "right"), [(0.0, True), (0.1, False), (float("nan"), False)])
def test_a_kernel_that_is_wrong_here_is_not_used(
    fault: float, right: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def made(x: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, None]:
        return reference.residual_unit(x, *rest)[0] * (1 + fault), None

    monkeypatch.setattr(cuda_unit, "residual_unit", made)
    assert cuda_unit._is_right(96, torch.device("cpu")) is right
    assert [r.levelname for r in caplog.records] == ([] if right else ["WARNING"])


def test_tritons_convolutions_make_the_same_unit() -> None:
    x, unit, past, following = unit_call(24, 2, 37, 3, following=True)
    wide = [t.float() if isinstance(t, torch.Tensor) else t for t in (x, past)]
    plain = unit._replace(
        **{n: getattr(unit, n).float() for n in ("wide", "wide_bias", "point", "point_bias")},
        before=Snake(*(t.float() for t in unit.before[:2])),
        between=Snake(*(t.float() for t in unit.between[:2])),
    )
    assert following is not None
    after = Snake(following.alpha.float(), following.beta.float())
    for last in (after, None):
        expected = reference.residual_unit(wide[0], plain, wide[1], last)
        got = triton_unit.residual_unit(wide[0], plain, wide[1], last)
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
