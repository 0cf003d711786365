"""Engines on tiny checkpoints, and requests that differ in everything that could leak between rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import sonant
from sonant import Engine, EngineConfig

MakeEngine = Callable[..., Engine]


@pytest.fixture
def make_engine(tiny_checkpoints: Mapping[str, Path]) -> Iterator[MakeEngine]:
    """`make_engine("custom", max_rows=4)`; closed after the test, which fails if anything is still held."""
    opened: list[Engine] = []

    def make(checkpoint: str = "custom", **options: Any) -> Engine:
        opened.append(sonant.load(tiny_checkpoints[checkpoint], device="cpu", config=EngineConfig(**options)))
        return opened[-1]

    yield make
    for engine in opened:
        engine.close()
        stats = engine.stats()
        assert (stats.running, stats.waiting) == (0, 0)
        assert (stats.free_rows, stats.free_blocks) == (stats.rows, stats.blocks)


def forget_requests(engine: Engine) -> None:
    """An engine that failed loses its rows with it: nothing is left for the fixture's check to be released."""
    scheduler, pool = engine.loop.scheduler, engine.loop.pool
    scheduler.running.clear()
    scheduler.waiting.clear()
    scheduler.rows.free[:] = range(scheduler.rows.scratch)
    pool.free.update((block, None) for block in range(1, pool.total + 1))


@pytest.fixture(scope="module")
def engine(tiny_checkpoints: Mapping[str, Path]) -> Iterator[Engine]:
    with sonant.load(tiny_checkpoints["custom"], device="cpu") as opened:
        yield opened
