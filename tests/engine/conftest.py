"""Engines on tiny checkpoints, and requests that differ in everything that could leak between rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import sonant
from engine.families import HIGGS_AUDIO_V2, QWEN3_TTS, TOY, VOXCPM2, Family, frames_each
from engine.going_on import FRAMES, Gate, Going, Make
from sonant import Engine, EngineConfig

MakeEngine = Callable[..., Engine]


@pytest.fixture(scope="session")
def tiny_checkpoints(
    tiny_checkpoints: Mapping[str, Path], few_codebooks: Mapping[str, Path], tiny_higgs: Path, tiny_voxcpm2: Path
) -> Mapping[str, Path]:
    """In this folder, checkpoints with few codebooks: an engine does the same with them at less than half the cost."""
    return {**tiny_checkpoints, **few_codebooks, "higgs": tiny_higgs, "voxcpm2": tiny_voxcpm2}


@pytest.fixture
def opened() -> Iterator[list[Engine]]:
    """Engines to be closed after the test, which fails if one still holds rows, blocks or requests."""
    engines: list[Engine] = []
    yield engines
    for engine in engines:
        engine.close()
        stats = engine.stats()
        assert (stats.running, stats.waiting, stats.parked) == (0, 0, 0)
        assert (stats.free_rows, stats.free_blocks) == (stats.rows, stats.blocks)


@pytest.fixture
def make_engine(tiny_checkpoints: Mapping[str, Path], opened: list[Engine]) -> MakeEngine:
    """`make_engine("custom", max_rows=4)` opens one of the tiny Qwen3-TTS checkpoints."""

    def make(checkpoint: str = "custom", **options: Any) -> Engine:
        opened.append(sonant.load(tiny_checkpoints[checkpoint], device="cpu", config=EngineConfig(**options)))
        return opened[-1]

    return make


@pytest.fixture(params=[QWEN3_TTS, HIGGS_AUDIO_V2, VOXCPM2, TOY], ids=lambda family: family.name, scope="module")
def family(request: pytest.FixtureRequest) -> Family:
    """A test with this fixture runs on every family."""
    found: Family = request.param
    return found


@pytest.fixture
def make_any(family: Family, tiny_checkpoints: Mapping[str, Path], opened: list[Engine]) -> MakeEngine:
    """`make_any(max_rows=4)` opens an engine of the family that the test runs on."""

    def make(**options: Any) -> Engine:
        opened.append(family.open(tiny_checkpoints, EngineConfig(**options)))
        return opened[-1]

    return make


@pytest.fixture(scope="module")
def any_engine(family: Family, tiny_checkpoints: Mapping[str, Path]) -> Iterator[Engine]:
    """One engine for all tests of a file that leave it as it is."""
    with family.open(tiny_checkpoints, EngineConfig()) as engine:
        yield engine


def forget_requests(engine: Engine) -> None:
    """Release what a failed engine still holds, so that it passes the check of `opened`."""
    scheduler, pool = engine.loop.scheduler, engine.loop.pool
    scheduler.running.clear()
    scheduler.waiting.clear()
    scheduler.parked.clear()
    scheduler.rows.free[:] = range(scheduler.rows.scratch)
    pool.free.update((block, None) for block in range(1, pool.total + 1))


@pytest.fixture(scope="module")
def engine(tiny_checkpoints: Mapping[str, Path]) -> Iterator[Engine]:
    with sonant.load(tiny_checkpoints["custom"], device="cpu") as opened:
        yield opened


@pytest.fixture
def make(opened: list[Engine]) -> Make:
    """`make(max_rows=4)` opens an engine on a toy with context, and returns both."""

    def make(**options: int) -> tuple[Engine, Going]:
        defaults = {"segment_chars": 60, "max_rows": 4, **frames_each(FRAMES, frame_s=0.04)}
        config, device = EngineConfig(**{**defaults, **options}), torch.device("cpu")
        model = Going(config, device)
        opened.append(Engine(model, config, device))
        return opened[-1], model

    return make


@pytest.fixture
def gate() -> Iterator[Gate]:
    found = Gate()
    yield found
    found.open.set()  # so that the engine can close after a test that failed
