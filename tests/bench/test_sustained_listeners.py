"""The search for the most listeners without an underrun, against engines whose limit is known."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from sonant.bench.client.capacity import Promise
from sonant.bench.engine.offline_table import sustained_rows, sustained_sentence
from sonant.bench.engine.sustained_listeners import SustainedListeners, find_sustained
from sonant.engine.engine import Engine
from sonant.errors import Overloaded

RATE_HZ = 1000
FRAMES = 20
STREAM_S = 0.2
STRICT = Promise(ttfp_s=0.5, gap_s=0.0, share=0.8, none_bad=True)  # takes 14 streams, none of them bad


@dataclass
class Scripted:
    """An engine that gives half of a stream's sound, and the rest right after it unless more than `limit` streams began
    within a stream's length: then it comes too late."""

    limit: float = float("inf")
    first_s: float = 0.0
    refuses: bool = False
    sample_rate: int = RATE_HZ
    model: Any = field(default_factory=lambda: SimpleNamespace(spec=SimpleNamespace(frame_s=STREAM_S / FRAMES)))
    came_s: list[float] = field(default_factory=list)
    speaking: int = 0

    def stats(self) -> SimpleNamespace:
        return SimpleNamespace(running=self.speaking, waiting=0)

    def stream(self, text: str, **options: Any) -> _Stream:
        if self.refuses:
            raise Overloaded("full")
        now_s = time.monotonic()
        self.came_s.append(now_s)
        crowd = sum(t > now_s - STREAM_S for t in self.came_s)
        return _Stream(self, late=crowd > self.limit)


class _Stream:
    def __init__(self, engine: Scripted, late: bool) -> None:
        self.engine, self.late = engine, late

    async def __aenter__(self) -> _Stream:
        self.engine.speaking += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self.engine.speaking -= 1

    async def __aiter__(self) -> AsyncIterator[SimpleNamespace]:
        half = np.zeros(int(RATE_HZ * STREAM_S / 2), np.float32)
        await asyncio.sleep(self.engine.first_s)
        yield SimpleNamespace(samples=half, sample_rate=RATE_HZ)
        if self.late:
            await asyncio.sleep(STREAM_S)
        yield SimpleNamespace(samples=half, sample_rate=RATE_HZ)


def sustained(engine: Scripted, promise: Promise = STRICT, *, start: int = 1, most: int = 8) -> SustainedListeners:
    return find_sustained(cast(Engine, engine), FRAMES, promise, start=start, most=most)


def test_an_engine_that_is_never_late_holds_all_that_were_tried() -> None:
    found = sustained(Scripted(), start=4)
    assert (found.capacity.listeners, found.capacity.breaks_at) == (8, None)
    last = found.levels[-1]
    assert (last.rate, last.requests, last.underruns, last.failed, last.cut) == (8 / STREAM_S, 16, 0, 0, False)
    assert 0.3 * 8 < last.mean_listeners < 2 * 8  # varies, as streams are few and Poisson
    assert "Held: 8 listeners" in sustained_sentence(found) and "more were not tried" in sustained_sentence(found)
    assert "80 % at 95 % confidence" in sustained_sentence(found)


def test_the_limit_is_found_below_where_it_breaks() -> None:
    """Poisson arrivals cluster: for never more than 12 at once, their mean must stay well below."""
    found = sustained(Scripted(limit=12), start=8, most=64)
    assert 0 < found.capacity.listeners < 12
    assert found.capacity.breaks_at is not None and found.capacity.breaks_at > found.capacity.listeners
    broken = [v for v in found.levels if v.listeners == found.capacity.breaks_at]
    assert any(v.underruns for v in broken)


def test_a_level_ends_at_its_first_bad_stream() -> None:
    engine = Scripted(limit=0)
    began_s = time.monotonic()
    found = sustained(engine)
    assert time.monotonic() - began_s < 3  # all 18 streams at 5 a second would take longer
    assert (found.capacity.listeners, found.capacity.breaks_at) == (0, 1)
    assert found.levels[0].cut and found.levels[0].underruns == 1
    assert engine.speaking == 0
    assert "Not even one" in sustained_sentence(found)
    assert sustained_rows(found.levels)[1][-1] == "cut at the first bad one"


def test_a_late_first_sound_is_not_held_even_without_an_underrun() -> None:
    found = sustained(Scripted(first_s=0.05), Promise(ttfp_s=0.02, gap_s=0.0, share=0.8, none_bad=True))
    assert found.capacity.listeners == 0
    assert found.levels[0].underruns == 0 and found.levels[0].first_audio_p99_ms > 20


def test_a_refused_listener_counts_as_failed() -> None:
    found = sustained(Scripted(refuses=True))
    assert found.capacity.listeners == 0
    assert found.levels[0].failed == 1


def test_a_fault_of_ours_is_not_a_result() -> None:
    engine = Scripted()
    engine.stream = None  # type: ignore[assignment, method-assign]
    with pytest.raises(TypeError):
        sustained(engine)
