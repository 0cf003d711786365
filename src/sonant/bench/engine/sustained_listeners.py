"""How many listeners the engine sustains in real time without one underrun, in this process, with no network.

Listeners arrive as a Poisson process, request a stream of a fixed length, and play it from the first chunk on: with r
arrivals a second and streams of s seconds, r · s listen at once. Those that arrive while the load builds up, or after
the last one that counts, are load but are not counted. The search is that of `bench capacity`. A level ends at its
first bad stream, since one is enough to fail it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sonant.bench.client.capacity import Capacity, Promise, Search
from sonant.bench.client.load import Load
from sonant.bench.client.load_level import LoadLevel, Spread
from sonant.bench.client.sample import Sample
from sonant.bench.engine.listener import listen
from sonant.engine.engine import Engine

_QUICK_REQUESTS = 16  # the fewest streams of a quick probe: with one listener at a time more would take long


@dataclass(frozen=True)
class SustainedLevel:
    listeners: int  # as asked for: rate · stream length
    rate: float  # arrivals a second
    mean_listeners: float  # how many really listened at once, on average over the window
    window_s: float  # from the first counted arrival to the last
    requests: int  # the counted ones
    underruns: int  # streams with an underrun
    failed: int
    first_audio_p50_ms: float
    first_audio_p99_ms: float
    late_p99_ms: float  # how long after their due time our own event loop began requests
    cut: bool  # whether the level ended at its first bad stream


@dataclass(frozen=True)
class SustainedListeners:
    stream_s: float
    promise: Promise
    capacity: Capacity
    levels: list[SustainedLevel]


def find_sustained(
    engine: Engine,
    frames: int,
    promise: Promise,
    *,
    start: int,
    most: int,
    on_level: Callable[[SustainedLevel], None] = lambda level: None,
) -> SustainedListeners:
    arrivals = _PoissonListeners(engine, frames, promise, on_level)
    found = Search(arrivals.measure, promise, start=start, most=most, quick_requests=_QUICK_REQUESTS).run()
    return SustainedListeners(arrivals.stream_s, promise, found, arrivals.levels)


class _PoissonListeners:
    def __init__(
        self, engine: Engine, frames: int, promise: Promise, on_level: Callable[[SustainedLevel], None]
    ) -> None:
        self.engine, self.frames, self.promise, self.on_level = engine, frames, promise, on_level
        self.stream_s = frames * engine.model.spec.frame_s
        self.levels: list[SustainedLevel] = []

    def measure(self, listeners: int, requests: int) -> LoadLevel:
        rate = listeners / self.stream_s
        load = Load(requests + 2 * listeners, rate=rate, seed=len(self.levels))
        began_s = time.perf_counter()
        ended = asyncio.run(self._play(load, range(listeners, listeners + requests)))
        wall_s = time.perf_counter() - began_s
        counted = [s for i, s in sorted(ended.items()) if listeners <= i < listeners + requests]
        self._note(listeners, rate, counted, list(ended.values()), cut=len(counted) < requests)
        return LoadLevel(load, wall_s, counted, None)

    async def _play(self, load: Load, counted: range) -> dict[int, Sample]:
        """The streams that ended, by their place in the order of arrival; if the level was cut, others are missing."""
        ended: dict[int, Sample] = {}
        bad = asyncio.Event()
        origin_s = time.perf_counter()

        async def one(index: int, due_s: float) -> None:
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            ended[index] = sample = await listen(self.engine, self.frames, index, due_s=due_s)
            if index in counted and not self._good(sample):
                bad.set()

        tasks = [asyncio.create_task(one(i, origin_s + at_s)) for i, at_s in enumerate(load.arrivals_s())]
        stop: asyncio.Future[Any] = asyncio.ensure_future(bad.wait())
        everyone: asyncio.Future[Any] = asyncio.gather(*tasks)
        try:
            await asyncio.wait({everyone, stop}, return_when=asyncio.FIRST_COMPLETED)
            if everyone.done():
                everyone.result()
        finally:
            for task in (*tasks, stop):
                task.cancel()
            await asyncio.gather(*tasks, everyone, stop, return_exceptions=True)
        await self._until_idle()
        return ended

    def _good(self, sample: Sample) -> bool:
        heard = sample.heard
        return (
            sample.ok
            and heard is not None
            and heard.gap_s <= self.promise.gap_s
            and sample.ttfp_s <= self.promise.ttfp_s
        )

    async def _until_idle(self) -> None:
        while (stats := self.engine.stats()).running or stats.waiting:
            await asyncio.sleep(0.01)

    def _note(
        self, listeners: int, rate: float, counted: Sequence[Sample], everyone: Sequence[Sample], *, cut: bool
    ) -> None:
        good = [s for s in counted if s.ok]
        first, late = Spread.of([s.ttfp_s for s in good]), Spread.of([s.late_s for s in everyone])
        starts = [s.started_s for s in counted]
        window = (min(starts), max(starts)) if starts else (0.0, 0.0)
        level = SustainedLevel(
            listeners=listeners,
            rate=rate,
            mean_listeners=_mean_listening(everyone, *window),
            window_s=window[1] - window[0],
            requests=len(counted),
            underruns=sum(h.gap_s > self.promise.gap_s for h in (s.heard for s in good) if h is not None),
            failed=len(counted) - len(good),
            first_audio_p50_ms=1e3 * first.p50 if first else 0.0,
            first_audio_p99_ms=1e3 * first.p99 if first else 0.0,
            late_p99_ms=1e3 * late.p99 if late else 0.0,
            cut=cut,
        )
        self.levels.append(level)
        self.on_level(level)


def _mean_listening(samples: Sequence[Sample], begin_s: float, end_s: float) -> float:
    """The mean number of listeners hearing sound between two moments, each from its first chunk to its last sample."""
    if end_s <= begin_s:
        return 0.0
    heard_s = 0.0
    for sample in samples:
        if sample.ok and sample.heard is not None:
            play_s = sample.started_s + sample.ttfp_s
            stop_s = play_s + sample.audio_s + sample.heard.gap_s
            heard_s += max(0.0, min(stop_s, end_s) - max(play_s, begin_s))
    return heard_s / (end_s - begin_s)
