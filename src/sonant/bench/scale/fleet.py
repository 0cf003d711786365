"""Replicas and their listeners, event by event: who waits for a row, what each step takes, when each frame is heard.

A newcomer goes to the replica with the fewest requests, as Ray's proxy sends them. A replica's step takes in prompts of
those who got a row, moves every row on by a frame (those with the least sound in hand first, where there are more than
fit), and ends when the engine's measured times say so; where there are fewer cores than busy replicas, they share them.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from dataclasses import dataclass, field

from sonant.bench.scale.engine_times import EngineTimes


@dataclass(frozen=True, kw_only=True)
class Load:
    """Listeners who come by chance, so that about `listeners` hear something at once; or as many who never stop."""

    listeners: int
    frames: int  # of each request
    seconds: float  # for which listeners come
    closed: bool = False  # each asks again when it has all of its sound, however much is still unheard
    at_once: bool = False  # all come in the first moment, and once


@dataclass(slots=True)
class Stream:
    came_s: float
    frames: int
    made: int = 0
    first_s: float | None = None
    gap: bool = False

    def ahead_s(self, now_s: float, frame_s: float) -> float:
        return -1.0 if self.first_s is None else self.made * frame_s - (now_s - self.first_s)


@dataclass(slots=True)
class Replica:
    waiting: deque[Stream] = field(default_factory=deque)
    running: list[Stream] = field(default_factory=list)
    new: list[Stream] = field(default_factory=list)  # whose prompt is in the step that runs
    stepped: list[Stream] = field(default_factory=list)  # who get a frame of it
    busy: bool = False

    @property
    def requests(self) -> int:
        return len(self.waiting) + len(self.running)


@dataclass(frozen=True)
class Outcome:
    first_s: tuple[float, ...]  # of every request that was heard, in order
    audio_s_per_s: float
    gap_share: float

    def first_quantile_s(self, share: float) -> float:
        return self.first_s[min(len(self.first_s) - 1, int(share * len(self.first_s)))]


class Fleet:
    def __init__(self, engine: EngineTimes, replicas: int, *, cores: float | None = None, seed: int = 0) -> None:
        """`cores`: that the replicas share; None: each has its own device."""
        self.engine, self.cores = engine, cores
        self.replicas = [Replica() for _ in range(replicas)]
        self._random = random.Random(seed)
        self._events: list[tuple[float, int, Replica | None]] = []  # a step's end, or a listener who comes
        self._count = 0
        self._streams: list[Stream] = []
        self._frames = 0
        self._end_s = 0.0

    def run(self, load: Load) -> Outcome:
        every_s = load.frames * self.engine.frame_s / load.listeners
        if load.closed or load.at_once:
            for _ in range(load.listeners):
                self._post(0.0, None)
        else:
            at_s = 0.0
            while (at_s := at_s + self._random.expovariate(1 / every_s)) < load.seconds:
                self._post(at_s, None)
        while self._events:
            now_s, _, replica = heapq.heappop(self._events)
            if load.closed and now_s > load.seconds:
                break
            self._end_s = now_s
            if replica is None:
                self._come(Stream(now_s, load.frames), now_s)
            else:
                self._step_done(replica, now_s, load)
        firsts = sorted(s.first_s - s.came_s for s in self._streams if s.first_s is not None)
        gaps = sum(s.gap for s in self._streams) / max(1, len(self._streams))
        return Outcome(tuple(firsts), self._frames * self.engine.frame_s / max(self._end_s, 1e-9), gaps)

    def _post(self, at_s: float, replica: Replica | None) -> None:
        self._count += 1
        heapq.heappush(self._events, (at_s, self._count, replica))

    def _come(self, stream: Stream, now_s: float) -> None:
        self._streams.append(stream)
        replica = min(self.replicas, key=lambda r: r.requests)
        replica.waiting.append(stream)
        if not replica.busy:
            self._step(replica, now_s)

    def _step(self, replica: Replica, now_s: float) -> None:
        engine = self.engine
        replica.new = []
        while replica.waiting and len(replica.running) < engine.rows and len(replica.new) < engine.prompts:
            stream = replica.waiting.popleft()
            replica.running.append(stream)
            replica.new.append(stream)
        replica.busy = bool(replica.running)
        if not replica.busy:
            return
        replica.stepped = replica.running
        if len(replica.running) > engine.batch:
            in_need = sorted(replica.running, key=lambda s: s.ahead_s(now_s, engine.frame_s))
            replica.stepped = in_need[: engine.batch]
        took_s = engine.step_s(len(replica.stepped), len(replica.new))
        if self.cores is not None:
            took_s *= max(1.0, sum(r.busy for r in self.replicas) / self.cores)
        self._post(now_s + took_s, replica)

    def _step_done(self, replica: Replica, now_s: float, load: Load) -> None:
        frame_s = self.engine.frame_s
        for stream in replica.stepped:
            if stream.first_s is None:
                stream.first_s = now_s + self.engine.start_s
            elif stream.ahead_s(now_s, frame_s) < 0:
                stream.gap = True
            stream.made += 1
        self._frames += len(replica.stepped)
        ended = [s for s in replica.stepped if s.made >= s.frames]
        if ended:
            replica.running = [s for s in replica.running if s.made < s.frames]
            if load.closed:
                for _ in ended:  # Nobody asks again in step with the others.
                    self._post(now_s + self._random.uniform(0.0, 2.0) * self.engine.start_s, None)
        self._step(replica, now_s)
