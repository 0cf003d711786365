"""Products of some rows in CUDA C++, on a CPU (hopper_on_cpu.h) or on a GPU: against the reference in float32."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
from torch import Tensor

from kernels.against import DEVICE, random
from kernels.hopper_on_cpu import HopperOnCpu
from sonant.kernels import reference
from sonant.kernels.gpu import Gpu, planning_for
from sonant.kernels.tuning import Tile

pytest.importorskip("triton")
from sonant.kernels.cuda import few_rows, usable
from sonant.kernels.cuda.kernel import CudaKernel
from sonant.kernels.triton import gemv

H200 = Gpu("NVIDIA H200", (9, 0))
BF16 = torch.bfloat16
RELATIVE_ERROR = 6e-3  # a rounding to bfloat16 or two
needs_gxx = pytest.mark.skipif(DEVICE == "cpu" and shutil.which("g++") is None, reason="no C++ compiler here")


@cache
def machine() -> HopperOnCpu:
    return HopperOnCpu(Path(mkdtemp()), "FewArgs")


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def launch(kernel: CudaKernel, device: torch.device, grid: Sequence[int], *values: float) -> None:
        machine().launch(kernel, device, grid, *values)

    if DEVICE == "cpu":
        monkeypatch.setattr(CudaKernel, "launch", launch)
        monkeypatch.setattr(usable, "find_compiler", lambda: "there is one")
        monkeypatch.setattr(usable, "refused", lambda *program: None)
    with torch.inference_mode(), planning_for(H200):
        yield


def close(got: Tensor, expected: Tensor) -> None:
    assert got.shape == expected.shape and got.dtype == BF16 and got.isfinite().all()
    assert float((got.double() - expected.double()).norm() / expected.double().norm()) < RELATIVE_ERROR


def wide(values: tuple[object, ...]) -> list[object]:
    return [v.float() if isinstance(v, Tensor) else v for v in values]


@pytest.mark.slow
@needs_gxx
@pytest.mark.parametrize(
    ("rows", "depth", "columns", "lines", "ranks"),
    [
        (3, 512, 128, 64, 2),
        (16, 1024, 128, 128, 8),
        (17, 256, 192, 64, 1),
        (32, 512, 128, 128, 4),
        (50, 640, 128, 64, 4),
        (64, 512, 64, 64, 2),
        (100, 512, 128, 128, 2),
        (200, 256, 64, 64, 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("fold", [1, 2])
def test_a_product_of_some_rows(rows: int, depth: int, columns: int, lines: int, ranks: int, fold: int) -> None:
    x, gain, before = (random(n, 1, m, dtype=BF16, seed=m) for n, m in ((rows, depth), (1, depth), (rows, columns)))
    weight = (random(2 * columns, depth, dtype=BF16, seed=2) / depth**0.5).to(BF16)
    half = weight[:columns].contiguous()
    for op, values in {
        "linear": (x, half),
        "linear_add": (x, half, before),
        "norm_linear": (x, gain[0, 0], 1e-6, half),
        "norm_gated": (x, gain[0, 0], 1e-6, weight),
    }.items():
        gated, norm = op == "norm_gated", op.startswith("norm")
        block_rows = 0 if rows <= 64 else lines
        tile = Tile(block_rows, lines // (2 if gated else 1), depth // ranks, 8, 1, ranks, fold=fold, cuda=True)
        assert few_rows.fits(tile, rows, depth, columns, norm=norm, gated=gated)
        given = [v.clone() if v is before else v for v in values]
        made = getattr(gemv, op)(*given, tile=tile)
        close(made, getattr(reference, op)(*wide(values)))
        if DEVICE != "cpu":  # whoever came first
            again = [getattr(gemv, op)(*(v.clone() if v is before else v for v in values), tile=tile) for _ in range(9)]
            assert all(torch.equal(one, made) for one in again)


@pytest.mark.slow
@needs_gxx
def test_rows_that_are_not_there_are_not_read() -> None:
    """Memory behind them may be anything."""
    tile, room = Tile(0, 64, 256, 8, 1, 2, cuda=True), torch.full((64, 512), float("nan"), dtype=BF16, device=DEVICE)
    room[:33] = random(33, 512, dtype=BF16)
    weight = (random(64, 512, dtype=BF16, seed=2) / 512**0.5).to(BF16)
    close(gemv.linear(room[:33], weight, tile=tile), reference.linear(room[:33].float(), weight.float()))


def test_what_there_is_no_kernel_for_is_left_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    tile, out, launched = Tile(0, 64, 256, 8, 1, cuda=True), random(3, 64, dtype=BF16), list[str]()
    monkeypatch.setattr(CudaKernel, "launch", lambda kernel, *given: launched.append(kernel.entry))

    def takes(x: Tensor, weight: Tensor, given: Tile = tile) -> bool:
        return few_rows.multiply(x, weight, out, given, gain=None, eps=0.0, gated=False, residual=None)

    x, weight = random(3, 256, dtype=BF16), random(64, 256, dtype=BF16)
    assert takes(x, weight) and launched == ["few_rows"]
    assert not takes(random(3, 320, dtype=BF16), random(64, 320, dtype=BF16))  # a depth that is not the tile's
    assert not takes(x.float(), weight.float())
    assert not takes(random(3 * 256 + 1, dtype=BF16)[1:].view(3, 256), weight)  # not at a multiple of 16 bytes
    assert not takes(x, weight, Tile(0, 32, 256, 8, 1, cuda=True))  # too few lines for a warpgroup
    assert not takes(x, weight, Tile(0, 64, 64, 8, 1, 4, cuda=True))  # too little depth for all warps
    assert not few_rows.fits(tile, 300, 256, 64, norm=False, gated=False)
    assert not few_rows.fits(tile, 64, 256, 96, norm=False, gated=False)  # columns that fill no tile
    if DEVICE == "cpu":
        with planning_for(Gpu("an older one", (8, 0))):
            assert not takes(x, weight)
        with planning_for(Gpu("a later one", (10, 0))):
            assert not takes(x, weight)
    assert launched == ["few_rows"]


def test_every_candidate_fits() -> None:
    shapes = (1024, 4096, False), (1024, 3072, True), (3072, 1024, False), (2048, 1024, False), (2048, 4096, False)
    for rows in (2, 16, 32, 64, 128, 256):
        for depth, columns, gated in shapes:
            tiles = list(few_rows.candidates(rows, depth, columns, norm=gated, gated=gated))
            assert tiles, (rows, depth, columns)
            assert all(few_rows.fits(tile, rows, depth, columns, norm=gated, gated=gated) for tile in tiles)
