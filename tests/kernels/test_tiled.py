"""Products in tiles of rows and columns, both sides without quantization, against plain torch."""

from __future__ import annotations

import pytest
import torch

from kernels.against import DEVICE, close, random
from sonant.kernels import reference, tuning
from sonant.kernels.gpu import Gpu, planning_for
from sonant.kernels.tuning import LIBRARY, Table, Tile

pytest.importorskip("triton")
from sonant.kernels.triton import gemv, tiled_tile

EPS = 1e-6
DTYPE = torch.float32 if DEVICE == "cpu" else torch.bfloat16  # the interpreter has no bfloat16 products


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("rows", [33, 64, 70])
def test_with_what_is_around_them(rows: int, splits: int) -> None:
    """Rows and columns do not fill their tiles; on a GPU half of the cases prefetch weights."""
    depth, columns, tile = 128, 40, Tile(64, 32, 32, stages=2, splits=splits, ahead=splits == 2)
    x, before = random(rows, 1, depth, dtype=DTYPE), random(rows, 1, columns, dtype=DTYPE, seed=1)
    half = random(columns, depth, dtype=DTYPE, seed=2) * depth**-0.5
    both = random(2 * columns, depth, dtype=DTYPE, seed=3) * depth**-0.5
    for _ in range(2):  # the second finds the counters as the first left them
        close(gemv.tiled(x, half, tile=tile), reference.linear(x, half), DTYPE)
        summed = gemv.tiled(x, half, residual=before, tile=tile)
        close(summed, reference.linear_add(x, half, before.clone()), DTYPE)
        close(gemv.tiled(x, both, gated=True, tile=tile), reference.swiglu(reference.linear(x, both)), DTYPE)


def test_a_tile_that_does_not_divide_the_depth_is_refused() -> None:
    x, weight = random(40, 96, dtype=DTYPE), random(32, 96, dtype=DTYPE)
    with pytest.raises(ValueError, match="does not divide a depth of 96"):
        gemv.tiled(x, weight, tile=Tile(64, 32, 64))


def test_only_what_was_measured_to_be_faster_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours are for 33 to 64 rows in sixteen bits; a shape that was not measured is the library's."""
    known = Tile(64, 32, 64)
    table = Table({"tiled 128x256 16 64": known, "tiled 128x512 16 64": LIBRARY, "tiled 128x256x2 16 64": known})
    monkeypatch.setattr(tuning, "table", lambda gpu: table)

    def tile(rows: int, columns: int, *, gated: bool = False, dtype: torch.dtype = torch.bfloat16) -> Tile | None:
        x, weight = (torch.empty(n, 128, dtype=dtype, device="meta") for n in (rows, columns))
        return tiled_tile.known_tile(x, weight, gated)

    with planning_for(Gpu("NVIDIA H200", (9, 0))):
        assert [tile(rows, 256) for rows in (16, 32, 33, 64, 65)] == [None, None, known, known, None]
        assert tile(64, 512) is None and tile(64, 384) is None and tile(64, 256, dtype=torch.float32) is None
        assert tile(64, 512, gated=True) == known
    assert tile(64, 256) is None  # without a GPU


def test_every_product_of_a_layer_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the one whose norm is left to the op that reads it."""
    monkeypatch.setattr(gemv, "known_tile", lambda x, weight, gated: Tile(64, 32, 32, stages=2))
    monkeypatch.setattr(gemv, "product_of_few", lambda *given, **options: None)
    monkeypatch.setattr(gemv.small_m_gemm, "fits", lambda rows, depth: False)
    x, gain = random(40, 1, 128, dtype=DTYPE), random(128, dtype=DTYPE, seed=1)
    half, both = random(32, 128, dtype=DTYPE, seed=2), random(64, 128, dtype=DTYPE, seed=3)
    half, both, before = half * 128**-0.5, both * 128**-0.5, random(40, 1, 32, dtype=DTYPE, seed=4)
    monkeypatch.setattr(torch.nn.functional, "linear", None)  # the library must not be called
    made = [
        gemv.linear(x, half), gemv.linear_add(x, half, before.clone()), gemv.norm_linear(x, gain, EPS, half),
        gemv.unscaled_linear(x, half), gemv.norm_gated(x, gain, EPS, both),
        gemv.norm_gated(x, torch.ones_like(gain), EPS, both, folded=True),
    ]  # fmt: skip
    monkeypatch.undo()
    expected = [
        reference.linear(x, half), reference.linear_add(x, half, before.clone()),
        reference.norm_linear(x, gain, EPS, half), reference.linear(x, half), reference.norm_gated(x, gain, EPS, both),
        reference.norm_gated(x, torch.ones_like(gain), EPS, both),
    ]  # fmt: skip
    for got, wanted in zip(made, expected, strict=True):
        close(got, wanted, DTYPE, roundings=3)
