"""Tiles come from our table, else from the user's, else from a rule; and a table is never half written."""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from sonant.kernels import tuning
from sonant.kernels.tuning import LIBRARY, Table, Tile

GPU = "NVIDIA Test 9000 (80GB)"
TILE, OTHER = Tile(64, 64, 32, splits=2), Tile(128, 128, 64, warps=8, wide=True)


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache and the shipped tables, in the test's own folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tuning, "shipped", lambda gpu: tmp_path / "shipped" / f"{tuning.file_name(gpu)}.json")
    tuning.table.cache_clear()
    return tmp_path


def test_a_gpu_has_a_file_of_its_own(places: Path) -> None:
    assert tuning.user_path(GPU) == places / "cache" / "sonant" / "tuning" / "nvidia-test-9000-80gb.json"


def test_nothing_is_known_of_a_new_gpu() -> None:
    assert tuning.table(GPU) == {}
    assert tuning.table(GPU).find("conv", "shape", 4) is None
    assert tuning.find("conv", "shape", 4, torch.device("cpu")) is None


def test_the_shipped_table_counts_before_the_users() -> None:
    tuning.write(tuning.user_path(GPU), GPU, {"conv a 8": TILE, "conv b 8": TILE})
    tuning.write(Path(str(tuning.shipped(GPU))), GPU, {"conv b 8": OTHER, "small_m c 16": LIBRARY})
    table = tuning.table(GPU)
    assert table.find("conv", "a", 8) == TILE
    assert table.find("conv", "b", 8) == OTHER
    assert table.find("small_m", "c", 16) == LIBRARY


@pytest.mark.parametrize(("rows", "expected"), [(5, TILE), (8, TILE), (4, TILE), (16, OTHER), (33, OTHER), (3, TILE)])
def test_neighbours_share_a_measurement(rows: int, expected: Tile) -> None:
    table = Table({tuning.key("conv", "a", 8): TILE, tuning.key("conv", "a", 32): OTHER})
    assert table.find("conv", "a", rows) == expected
    assert table.find("conv", "a", 1) is None
    assert table.find("small_m", "a", rows) is None
    assert table.find("conv", "a", rows) == expected  # also when it was looked up before


def test_a_users_table_of_an_earlier_version_is_read_and_its_old_keys_are_not_found(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tuning.write(tuning.user_path(GPU), GPU, {"few a 16": TILE, "conv b 8": OTHER})
    with caplog.at_level(logging.WARNING):
        table = tuning.table(GPU)
    assert table.find("small_m", "a", 16) is None
    assert table.find("conv", "b", 8) == OTHER
    assert not caplog.text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"format": 99, "tiles": {}}',
        '{"format": 1, "tiles": {"conv a 8": {"m": "64"}}}',
        '{"format": 1, "tiles": {"conv a 8": {"block": 64}}}',
        '{"format": 1, "tiles": {"conv a 8": 7}}',
    ],
)
def test_a_broken_table_is_ignored_and_said_to_be(text: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tuning.user_path(GPU)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with caplog.at_level(logging.WARNING):
        assert tuning.table(GPU) == {}
    assert str(path) in caplog.text


def test_a_table_that_cannot_be_looked_for_is_ignored_and_said_to_be(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Like a HOME that belongs to another user, but also for root, who may look everywhere: the name is too long."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/" + 300 * "x")
    with caplog.at_level(logging.WARNING):
        assert tuning.table(GPU) == {}
    assert "is ignored" in caplog.text


def test_of_many_writers_one_wins_whole() -> None:
    path = tuning.user_path(GPU)
    tables = [{f"conv {n} {rows}": Tile(m=n, n=rows) for rows in range(1, 200)} for n in range(1, 9)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda table: tuning.write(path, GPU, table), tables))
    assert tuning.read(path) in tables
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_what_we_ship_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (Path(tuning.__file__).parent / "tables").glob("*.json"):
        data = json.loads(path.read_text())
        assert tuning.file_name(data["gpu"]) == path.stem
        assert tuning.decode(data)
