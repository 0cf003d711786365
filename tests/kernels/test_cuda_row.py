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
from sonant.kernels.reference import Heads
from sonant.kernels.tuning import LIBRARY, Tile

pytest.importorskip("triton")
from kernels.test_cuda_on_cpu import OnCpu
from sonant.kernels.cuda import few_rows, row_product, usable
from sonant.kernels.cuda.kernel import CudaKernel
from sonant.kernels.triton import gemv, short_out

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(DEVICE == "cpu" and shutil.which("g++") is None, reason="no C++ compiler here"),
]
H200, OLDER = Gpu("NVIDIA H200", (9, 0)), Gpu("an older one", (8, 0))
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
    ("depth", "columns", "tile"),
    [
        (256, 21, Tile(0, 8, 0, warps=4, cuda=True)),
        (768, 64, Tile(0, 4, 0, warps=4, cuda=True)),
        (1024, 40, Tile(0, 16, 0, warps=8, cuda=True)),
    ],
    ids=str,
)
def test_a_product_of_one_row(depth: int, columns: int, tile: Tile) -> None:
    x, gain, before = (random(1, 1, n, dtype=BF16, seed=n) for n in (depth, depth, columns))
    weight = (random(2 * columns, depth, dtype=BF16, seed=2) / depth**0.5).to(BF16)
    half = weight[:columns].contiguous()
    for op, values in {
        "linear": (x, half),
        "linear_add": (x, half, before),
        "norm_linear": (x, gain[0, 0], 1e-6, half),
        "norm_gated": (x, gain[0, 0], 1e-6, weight),
    }.items():
        expected = getattr(reference, op)(*wide(values))
        given = [v.clone() if v is before else v for v in values]
        close(getattr(gemv, op)(*given, tile=tile), expected)


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
    tile, out = Tile(0, 8, 0, warps=4, cuda=True), random(1, 16, dtype=BF16)

    def takes(x: Tensor, weight: Tensor) -> bool:
        return row_product.product(x, weight, out, tile, gain=None, eps=0.0, gated=False, residual=None)

    assert takes(random(1, 256, dtype=BF16), random(16, 256, dtype=BF16))
    assert not takes(random(1, 320, dtype=BF16), random(16, 320, dtype=BF16))  # no whole pieces
    assert not takes(random(1, 256), random(16, 256))  # float32
    assert not takes(random(1, 257, dtype=BF16)[:, 1:], random(16, 256, dtype=BF16))  # not at a multiple of 16 bytes
    if DEVICE == "cpu":
        with planning_for(OLDER):
            assert not takes(random(1, 256, dtype=BF16), random(16, 256, dtype=BF16))


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize(("kv_heads", "share", "norm"), [(2, 2, True), (4, 1, False), (8, 2, True)])
def test_attention_and_projection_of_one_row(kv_heads: int, share: int, norm: bool, columns: int) -> None:
    """From the second position to the last, with memory that is NaN wherever nothing was written."""
    if DEVICE == "cpu" and kv_heads == 8 and columns == 1:
        pytest.skip("the same code, and 256 fibres a block")
    heads, dim, positions, width = share * kv_heads, 128, 16, 40
    tile = Tile(0, columns * kv_heads, 0, warps=kv_heads, cuda=True)
    weight = (random(width, heads * dim, dtype=BF16, seed=3) / (heads * dim) ** 0.5).to(BF16)
    for first in (0, 1, 6, positions - 1):
        cache_ = torch.full((2, 1, positions, kv_heads, dim), float("nan"), dtype=BF16, device=DEVICE)
        cache_[:, :, :first] = random(2, 1, first, kv_heads, dim, dtype=BF16, seed=20)
        qkv = random(1, 1, (heads + 2 * kv_heads) * dim, dtype=BF16, seed=first)
        gains = [random(dim, dtype=BF16, seed=n) for n in (7, 8)] if norm else [None, None]
        cos, sin = (random(1, 1, 1, dim, dtype=BF16, seed=n) for n in (9, 10))
        of, before = Heads(*gains, cos, sin, heads, kv_heads, 1e-6), random(1, 1, width, dtype=BF16, seed=11)
        exact = Heads(*wide(tuple(gains)), cos.float(), sin.float(), heads, kv_heads, 1e-6)  # type: ignore[arg-type]
        other = cache_.float()
        expected = reference.short_attention_add(qkv.float(), exact, other, first, weight.float(), before.float())
        got = short_out.short_attention_add(qkv, of, cache_, first, weight, before, tile=tile)
        close(got, expected)
        assert torch.equal(cache_.isnan(), other.isnan())
        close(cache_.nan_to_num(), other.nan_to_num())


def test_more_rows_and_a_measurement_against_it_are_two_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused is done all the same."""
    monkeypatch.setattr(row_product, "short_out", lambda *given, **options: pytest.fail("it was not to be asked"))
    weight = random(16, 128).contiguous()
    of = Heads(None, None, random(1, 1, 1, 64), random(1, 1, 1, 64, seed=1), 2, 1, 1e-6)
    for rows, tile in ((2, None), (1, LIBRARY)):
        qkv, before = random(rows, 1, 256, seed=2), random(rows, 1, 16, seed=3)
        caches = [torch.zeros(2, rows, 4, 1, 64, device=DEVICE) for _ in "ab"]
        expected = reference.short_attention_add(qkv, of, caches[0], 0, weight, before)
        with planning_for(OLDER):  # the interpreter knows no dependent launch
            got = short_out.short_attention_add(qkv, of, caches[1], 0, weight, before.clone(), tile=tile)
        assert torch.allclose(got, expected, atol=1e-4) and torch.allclose(*caches, atol=1e-5)
