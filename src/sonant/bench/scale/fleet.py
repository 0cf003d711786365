"""Replicas and their listeners, event by event: who waits for a row, what each step takes, when each frame is heard.

A newcomer goes to the replica with the fewest requests, as Ray's proxy sends them. A replica's step takes in prompts of
those who got a row, moves every row on by a frame (those with the least sound in hand first, where there are more than
fit), and ends when the engine's measured times say so. Engines have a device each, and what carries their sound takes
no time of it; or all of them share the cores of one machine (`shared_host.py`).
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from sonant.bench.scale.engine_times import EngineTimes
from sonant.bench.scale.shared_host import HostTimes, SharedHost, Worker


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
    heard: int = 0
    first_s: float | None = None
    gap: bool = False

    def ahead_s(self, now_s: float, frame_s: float) -> float:
        return -1.0 if self.first_s is None else self.made * frame_s - (now_s - self.first_s)


@dataclass(slots=True)
class Replica:
    waiting: deque[Stream] = field(default_factory=deque)
    running: list[Stream] = field(default_factory=list)
    on_the_way: int = 0  # to it, through the proxy and its front end
    busy: bool = False
    engine: Worker = field(default_factory=Worker)
    front: Worker = field(default_factory=Worker)

    @property
    def requests(self) -> int:
        return len(self.waiting) + len(self.running) + self.on_the_way


@dataclass(frozen=True)
class Outcome:
    first_s: tuple[float, ...]  # of every request that was heard, in order
    audio_s_per_s: float
    gap_share: float

    def first_quantile_s(self, share: float) -> float:
        return self.first_s[min(len(self.first_s) - 1, int(share * len(self.first_s)))]


class Fleet:
    def __init__(
        self, engine: EngineTimes, replicas: int, *, host: HostTimes | None = None, seed: int = 0
    ) -> None:
        """`host`: whose cores the replicas share; None: each engine has its own device."""
        self.engine, self.host = engine, host
        self.replicas = [Replica() for _ in range(replicas)]
        self._cores = None if host is None else SharedHost(host.cores)
        self._clients = Worker()
        self._random = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = 0
        self._streams: list[Stream] = []
        self._frames = 0
        self._closed = False
        self._end_s = 0.0

    def run(self, load: Load) -> Outcome:
        self._closed = load.closed
        every_s = load.frames * self.engine.frame_s / load.listeners
        come = partial(self._come, load.frames)
        if load.closed or load.at_once:
            for _ in range(load.listeners):
                self._post(0.0, come)
        else:
            at_s = 0.0
            while (at_s := at_s + self._random.expovariate(1 / every_s)) < load.seconds:
                self._post(at_s, come)
        self._go_on(load.seconds if load.closed else None)
        firsts = sorted(s.first_s - s.came_s for s in self._streams if s.first_s is not None)
        gaps = sum(s.gap for s in self._streams) / max(1, len(self._streams))
        return Outcome(tuple(firsts), self._frames * self.engine.frame_s / max(self._end_s, 1e-9), gaps)

    def _go_on(self, until_s: float | None) -> None:
        """From one moment at which something is done to the next, until nothing is left or the time is over."""
        while True:
            posted_s = self._events[0][0] if self._events else None
            worked_s = None if self._cores is None else self._cores.next_s()
            now_s = min((s for s in (posted_s, worked_s) if s is not None), default=None)
            if now_s is None or (until_s is not None and now_s > until_s):
                return
            self._end_s = now_s
            if self._cores is not None:
                self._cores.go_to(now_s)
            if now_s == posted_s:
                heapq.heappop(self._events)[2](now_s)

    def _post(self, at_s: float, then: Callable[[float], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (at_s, self._count, then))

    def _come(self, frames: int, now_s: float) -> None:
        stream = Stream(now_s, frames)
        self._streams.append(stream)
        if self.host is None or self._cores is None:
            self._arrive(self._fewest(), stream, now_s)
            return
        cores, front_s = self._cores, self.host.front_request_s

        def sent(_: float) -> None:
            replica = self._fewest()
            replica.on_the_way += 1
            cores.do(replica.front, front_s, partial(taken, replica))

        def taken(replica: Replica, then_s: float) -> None:
            replica.on_the_way -= 1
            self._arrive(replica, stream, then_s)

        cores.do(self._clients, self.host.client_request_s, sent)

    def _fewest(self) -> Replica:
        return min(self.replicas, key=lambda r: r.requests)

    def _arrive(self, replica: Replica, stream: Stream, now_s: float) -> None:
        replica.waiting.append(stream)
        if not replica.busy:
            self._step(replica, now_s)

    def _step(self, replica: Replica, now_s: float) -> None:
        engine, new = self.engine, 0
        while replica.waiting and len(replica.running) < engine.rows and new < engine.prompts:
            replica.running.append(replica.waiting.popleft())
            new += 1
        replica.busy = bool(replica.running)
        if not replica.busy:
            return
        stepped = list(replica.running)
        if len(stepped) > engine.batch:
            stepped = sorted(stepped, key=lambda s: s.ahead_s(now_s, engine.frame_s))[: engine.batch]
        took_s = engine.step_s(len(stepped), new)
        done = partial(self._step_done, replica, stepped)
        if self._cores is None:
            self._post(now_s + took_s, done)
        else:
            self._cores.do(replica.engine, took_s, done)

    def _step_done(self, replica: Replica, stepped: list[Stream], now_s: float) -> None:
        for stream in stepped:
            stream.made += 1
            self._carry(replica, stream, now_s)
        replica.running = [s for s in replica.running if s.made < s.frames]
        self._step(replica, now_s)

    def _carry(self, replica: Replica, stream: Stream, now_s: float) -> None:
        """A frame, from the engine to who hears it."""
        if self.host is None or self._cores is None:
            self._hear(stream, now_s)
            return
        cores, client_s = self._cores, self.host.client_frame_s

        def sent(_: float) -> None:
            cores.do(self._clients, client_s, partial(self._hear, stream))

        cores.do(replica.front, self.host.front_frame_s, sent)

    def _hear(self, stream: Stream, now_s: float) -> None:
        if stream.first_s is None:
            stream.first_s = now_s + self.engine.start_s
        elif stream.heard * self.engine.frame_s < now_s - stream.first_s:
            stream.gap = True
        stream.heard += 1
        self._frames += 1
        if self._closed and stream.heard == stream.frames:  # Nobody asks again in step with the others.
            self._post(now_s + self._random.uniform(0.0, 2.0) * self.engine.start_s, partial(self._come, stream.frames))
