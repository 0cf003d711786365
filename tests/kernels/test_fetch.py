"""Shares of a weight that is fetched ahead: together they are all of it, in sizes that the instruction takes."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

pytest.importorskip("triton")
from sonant.kernels.triton.fetch import next_options, piece_of


@pytest.mark.parametrize("shape", [(1024, 2048), (8192, 1024), (1024, 4096), (2560, 1024), (64, 24)])
@pytest.mark.parametrize(("programs", "warps"), [(1, 4), (96, 4), (160, 8), (512, 4)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_pieces_cover_the_weight(shape: tuple[int, int], programs: int, warps: int, dtype: torch.dtype) -> None:
    weight = torch.empty(shape, dtype=dtype, device="meta")
    piece, count = piece_of(weight, programs, warps), weight.numel()
    if piece == 0:
        assert count * weight.itemsize / (programs * warps) > 1 << 19 or count * weight.itemsize > 24 << 20
        return
    assert piece * weight.itemsize % 16 == 0 and piece * weight.itemsize < 1 << 20 and piece <= count
    starts = [min(n * piece, count - piece) for n in range(programs * warps)]
    assert starts[0] == 0 and starts[-1] == count - piece and (count - piece) * weight.itemsize % 16 == 0
    assert all(after - start <= piece for start, after in pairwise(starts))


@pytest.mark.parametrize(
    "weight",
    [
        None,
        torch.empty(3, 5, dtype=torch.bfloat16, device="meta"),  # no multiple of 16 bytes
        torch.empty(64, 128, device="meta").T,
        torch.empty(12_288, 2048, dtype=torch.bfloat16, device="meta"),  # all of the cache
    ],
    ids=["none", "odd", "strided", "large"],
)
def test_what_cannot_be_fetched_is_left(weight: torch.Tensor | None) -> None:
    instead = torch.empty(1, device="meta")
    options = next_options(weight, 128, 4, True, instead)
    assert options["THEN"] == 0 and options["then"] is instead


def test_a_gpu_without_dependent_launch_fetches_nothing() -> None:
    weight = torch.empty(1024, 1024, dtype=torch.bfloat16, device="meta")
    assert next_options(weight, 128, 4, False, weight)["THEN"] == 0
    assert next_options(weight, 128, 4, True, weight)["THEN"] == 4
