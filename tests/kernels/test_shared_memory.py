"""Kernels fit in the shared memory of the GPU that they are for, which may be less than half of Hopper's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sonant.kernels import tuning
from sonant.kernels.gpu import Gpu, planning_for
from sonant.kernels.tuning import Tile

pytest.importorskip("triton")
from sonant.kernels.triton import dual_tile, small_m_tile, tiled_tile

ADA, A100, HOPPER = Gpu("NVIDIA L40S", (8, 9)), Gpu("NVIDIA A100", (8, 0)), Gpu("NVIDIA H100 of a new kind", (9, 0))
ROOM = {ADA: 99 << 10, A100: 163 << 10, HOPPER: 227 << 10, Gpu("NVIDIA GeForce RTX 5090", (12, 0)): 99 << 10}
SIZES = ((2048, 4096, False), (1024, 3072, True), (6144, 2048, False))  # depth, columns, gated


@pytest.fixture(autouse=True)
def own_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tuning.table.cache_clear()
    yield
    tuning.table.cache_clear()


def values(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16, device="meta")


@pytest.mark.parametrize("gpu", ROOM, ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("rows", [2, 16, 17, 32, 33, 64, 129, 600])
def test_a_rules_tile_has_no_more_stages_than_there_is_room_for(gpu: Gpu, rows: int) -> None:
    assert gpu.shared_bytes == ROOM[gpu]
    with planning_for(gpu):
        for depth, columns, gated in SIZES:
            planes = 2 if gated else 1
            x, weight = values(rows, depth), values(planes * columns, depth)
            tile = dual_tile.tile_for(x, weight, gated)
            assert dual_tile.shared_bytes(tile, gated, 2) <= ROOM[gpu]
            tile = tiled_tile.tile_for(rows, depth, columns, gated, x.device)
            assert tile.stages * tile.k * (tile.m + planes * tile.n) <= ROOM[gpu]
            if rows <= small_m_tile.ROWS:
                tile = small_m_tile.tile_for(x, weight, columns, gated, norm=False)
                assert tile.stages * tile.k * 2 * (max(16, rows) + planes * tile.n) <= ROOM[gpu]


def test_on_hopper_nothing_is_taken_from_the_rules() -> None:
    with planning_for(HOPPER):
        for rows in (16, 17, 32, 64):
            for depth, columns, gated in SIZES:
                weight = values((2 if gated else 1) * columns, depth)
                tile = small_m_tile.tile_for(values(rows, depth), weight, columns, gated, norm=False)
                assert tile == small_m_tile.rule(rows, depth, columns, gated, 2)
                assert dual_tile.tile_for(values(600, depth), weight, gated) == dual_tile.rule(
                    600, depth, columns, gated, 2
                )


@pytest.mark.parametrize("rows", [17, 32, 33, 64])
def test_what_was_measured_with_fewer_rows_is_not_taken_where_it_does_not_fit(rows: int) -> None:
    """As after `--tune --rows 16`, or for weights of eight bits, which are measured with no more rows."""
    small, large = Tile(0, 64, 128, stages=3, splits=4), Tile(0, 32, 1024, warps=8, stages=2)
    found = {}
    for tile in (small, large):
        tuning.write(tuning.user_path(HOPPER.name), HOPPER.name, {"small_m 2048x2048 16 16": tile})
        tuning.table.cache_clear()
        with planning_for(HOPPER):
            weight = values(2048, 2048)
            assert small_m_tile.tile_for(values(16, 2048), weight, 2048, gated=False, norm=False) == tile
            found[tile] = small_m_tile.tile_for(values(rows, 2048), weight, 2048, gated=False, norm=False)
    assert found == {small: small, large: small_m_tile.rule(rows, 2048, 2048, False, 2)}


def test_all_that_was_measured_on_a_gpu_is_taken_there() -> None:
    measured = tuning.table("NVIDIA H200")
    with planning_for(Gpu("NVIDIA H200", (9, 0))):
        for key, tile in measured.items():
            if key.startswith("small_m"):
                shape, rows = key.split()[1], int(key.split()[-1])
                depth, columns = map(int, shape.removesuffix("x2").split("x"))
                gated = shape.endswith("x2")
                weight = values((2 if gated else 1) * columns, depth)
                assert tile == small_m_tile.tile_for(values(rows, depth), weight, columns, gated, "norm" in key)


@pytest.mark.slow
def test_what_is_compiled_for_ada_needs_no_more_than_it_has(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    script = Path(__file__).with_name("ada_compiler.py")
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    needed = dict(line.split() for line in done.stdout.splitlines())
    assert set(needed) >= {"_small_m_gemm", "_dual_gemm", "_flow_turn", "_conv", "_attention", "_ring_attention"}
    assert all(int(most) <= ROOM[ADA] for most in needed.values()), needed
