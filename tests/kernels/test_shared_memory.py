"""Kernels fit in the shared memory of the GPU that they are for, which may have less than half of Hopper's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sonant.kernels.gpu import Gpu, planning_for

pytest.importorskip("triton")
from sonant.kernels.triton import dual_tile, small_m_tile, tiled_tile

ADA, A100, H200 = Gpu("NVIDIA L40S", (8, 9)), Gpu("NVIDIA A100", (8, 0)), Gpu("NVIDIA H100 of a new kind", (9, 0))
ROOM = {ADA: 99 << 10, A100: 163 << 10, H200: 227 << 10, Gpu("NVIDIA GeForce RTX 5090", (12, 0)): 99 << 10}
SIZES = ((2048, 4096, False), (1024, 3072, True), (6144, 2048, False))  # depth, columns, gated


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
    with planning_for(H200):
        for rows in (16, 17, 32, 64):
            for depth, columns, gated in SIZES:
                weight = values((2 if gated else 1) * columns, depth)
                tile = small_m_tile.tile_for(values(rows, depth), weight, columns, gated, norm=False)
                assert tile == small_m_tile.rule(rows, depth, columns, gated, 2)
                assert dual_tile.tile_for(values(600, depth), weight, gated) == dual_tile.rule(
                    600, depth, columns, gated, 2
                )


@pytest.mark.slow
def test_what_is_compiled_for_ada_needs_no_more_than_it_has(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    script = Path(__file__).with_name("ada_compiler.py")
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    needed = dict(line.split() for line in done.stdout.splitlines())
    assert set(needed) >= {"_small_m_gemm", "_dual_gemm", "_flow_turn", "_conv", "_attention", "_ring_attention"}
    assert all(int(most) <= ROOM[ADA] for most in needed.values()), needed
