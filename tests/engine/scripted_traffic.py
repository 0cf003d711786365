"""Requests that come and go at given steps, not at given times, so that two engines can be compared to the bit."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from engine.families import Family
from sonant import Engine
from sonant.engine.scheduler import Plan
from sonant.engine.stream import SpeechStream


@dataclass(frozen=True)
class Arrival:
    request: int
    step: int
    aborted_after: int | None  # this many steps; None: it is not aborted


def arrivals(seed: int, count: int) -> list[Arrival]:
    drawn = random.Random(seed)
    steps = sorted(drawn.randint(0, 12) for _ in range(count))
    return [Arrival(n, at, drawn.randint(1, 6) if drawn.random() < 0.3 else None) for n, at in enumerate(steps)]


class ScriptedTraffic:
    """An observer that posts and aborts requests from the step thread."""

    def __init__(self, engine: Engine, family: Family, script: list[Arrival]) -> None:
        self.engine, self.family, self.left = engine, family, list(script)
        self.streams: list[SpeechStream] = []
        self.aborts: list[tuple[int, SpeechStream]] = []
        self.all_posted = threading.Event()
        self.error: Exception | None = None

    def between_steps(self) -> None:
        try:
            self._post(self.engine.loop.steps)
        except Exception as e:
            self.error = e
            self.all_posted.set()

    def _post(self, step: int) -> None:
        idle = not self.engine.loop.scheduler.requests
        while self.left and (self.left[0].step <= step or idle):
            arrival, idle = self.left.pop(0), False
            self.streams.append(self.engine.stream(**{**self.family.request(arrival.request), "live": False}))
            if arrival.aborted_after is not None:
                self.aborts.append((step + arrival.aborted_after, self.streams[-1]))
        for at, stream in [a for a in self.aborts if a[0] <= step]:
            self.aborts.remove((at, stream))
            stream.abort()
        if not self.left:
            self.all_posted.set()

    @contextmanager
    def around_launch(self, plan: Plan) -> Iterator[None]:
        yield


def heard(engine: Engine, family: Family, script: list[Arrival]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Each request's frames and samples; an aborted one's as far as they came."""
    traffic = ScriptedTraffic(engine, family, script)
    engine.loop.observe(traffic)
    assert traffic.all_posted.wait(60)
    if traffic.error is not None:
        raise traffic.error
    spoken = []
    for stream in traffic.streams:
        chunks = list(stream)
        frames = [c.frames for c in chunks]
        spoken.append((np.concatenate(frames or [np.zeros(0)]), np.concatenate([c.samples for c in chunks] or [[]])))
    engine.loop.observe(None)
    return spoken
