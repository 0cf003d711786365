"""Kernels in CUDA C++ for few rows, on a CPU (cuda_on_cpu.h) or on a GPU: against the reference in float32."""

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
from sonant.kernels import reference
from sonant.kernels.gpu import Gpu, planning_for
from sonant.kernels.tuning import Tile

pytest.importorskip("triton")
from kernels.test_cuda_on_cpu import OnCpu
from sonant.kernels.cuda import few_rows, usable
from sonant.kernels.cuda.kernel import CudaKernel
from sonant.kernels.triton import gemv

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(DEVICE == "cpu" and shutil.which("g++") is None, reason="no C++ compiler here"),
]
H200 = Gpu("NVIDIA H200", (9, 0))
BF16 = torch.bfloat16
RELATIVE_ERROR = 6e-3  # a rounding to bfloat16 or two


@cache
def machine() -> OnCpu:
    return OnCpu(Path(mkdtemp()))


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


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "tile"),
    [
        (3, 256, 37, Tile(0, 16, 0, 8, 1, cuda=True)),
        (17, 512, 40, Tile(0, 8, 0, 8, 2, cuda=True)),
        (33, 512, 21, Tile(0, 24, 0, 8, 2, 2, cuda=True)),
        (64, 768, 32, Tile(0, 32, 0, 8, 2, 3, cuda=True)),
        (60, 1024, 16, Tile(0, 16, 0, 8, 8, cuda=True)),
    ],
    ids=str,
)
def test_a_product_of_some_rows(rows: int, depth: int, columns: int, tile: Tile) -> None:
    x, gain, before = (random(n, 1, m, dtype=BF16, seed=m) for n, m in ((rows, depth), (1, depth), (rows, columns)))
    weight = (random(2 * columns, depth, dtype=BF16, seed=2) / depth**0.5).to(BF16)
    half = weight[:columns].contiguous()
    for op, values in {
        "linear": (x, half),
        "linear_add": (x, half, before),
        "norm_linear": (x, gain[0, 0], 1e-6, half),
        "norm_gated": (x, gain[0, 0], 1e-6, weight),
    }.items():
        assert few_rows.fits(tile, rows, depth, op == "norm_gated", op.startswith("norm"))
        expected = getattr(reference, op)(*wide(values))
        for _ in range(2 if op == "norm_gated" else 1):  # the second finds what the first left in the counters
            given = [v.clone() if v is before else v for v in values]
            close(getattr(gemv, op)(*given, tile=tile), expected)


def test_what_there_is_no_kernel_for_is_left_to_the_caller() -> None:
    tile, out = Tile(0, 8, 0, 8, 1, cuda=True), random(3, 16, dtype=BF16)

    def takes(x: Tensor, weight: Tensor, given: Tile = tile) -> bool:
        return few_rows.product(x, weight, out, given, gain=None, eps=0.0, gated=False, residual=None)

    x, weight = random(3, 256, dtype=BF16), random(16, 256, dtype=BF16)
    assert takes(x, weight)
    assert not takes(random(3, 320, dtype=BF16), random(16, 320, dtype=BF16))  # no whole blocks for eight warps
    assert not takes(x.float(), weight.float())
    assert not takes(random(3 * 256 + 1, dtype=BF16)[1:].view(3, 256), weight)  # not at a multiple of 16 bytes
    assert not takes(x, weight, Tile(0, 8, 0, 8, 4, cuda=True))  # more on the way than there is
    if DEVICE == "cpu":
        with planning_for(Gpu("an older one", (8, 0))):
            assert not takes(x, weight)


def test_every_candidate_fits() -> None:
    shapes = (1024, 4096, False), (1024, 3072, True), (3072, 1024, False), (2048, 1024, False)
    for rows in (2, 16, 32, 64):
        for depth, columns, gated in shapes:
            tiles = list(few_rows.candidates(rows, depth, columns, gated, norm=gated))
            assert tiles and all(few_rows.fits(tile, rows, depth, gated, norm=gated) for tile in tiles)
            assert few_rows.rule(rows, depth, columns, gated, norm=gated) in tiles
