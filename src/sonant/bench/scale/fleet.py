"""Simulates replicas and their listeners by events: when requests wait for a row, steps end, and frames are heard.

A new request goes to the replica with the fewest requests, as Ray's proxy sends it. A replica's step takes in prompts
of requests that got a row, advances every row by a frame (those with the least sound buffered first, if not all fit),
decodes the chunks that are due, and lasts as long as the engine's measured times say. Either each engine has its own
device, of which carrying the sound takes no time; or all engines share the cores of one machine with client, proxy,
front ends and the engines' channels (`shared_host.py`).
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from sonant.bench.scale.engine_times import EngineTimes
from sonant.bench.scale.shared_host import HostTimes, Session, SharedHost, Worker

_OTHERS_EVERY_S = 0.01


@dataclass(frozen=True, kw_only=True)
class Load:
    """Listeners that arrive at random, so that about `listeners` listen at once; or as many that never stop."""

    listeners: int
    frames: int  # of each request
    seconds: float  # how long listeners arrive
    closed: bool = False  # each asks again when it has received all of its sound, however much is still unheard
    at_once: bool = False  # all arrive at the start, and once


@dataclass(slots=True)
class Stream:
    came_s: float
    frames: int
    steps: int = 0  # steps that it took part in
    sounded: int = 0  # frames that the codec has decoded
    begun_s: float | None = None  # when the engine had made its first sound
    heard: int = 0
    first_s: float | None = None
    gap: bool = False

    def ahead_s(self, now_s: float, frame_s: float) -> float:
        return -1.0 if self.begun_s is None else self.sounded * frame_s - (now_s - self.begun_s)


@dataclass(slots=True)
class Replica:
    waiting: deque[Stream] = field(default_factory=deque)
    running: list[Stream] = field(default_factory=list)
    open: int = 0  # requests that were sent to it and have not received all of their sound
    changed: int = 0  # when `open` last changed, as a count of such changes over all replicas
    busy: bool = False
    engine: Worker = field(default_factory=Worker)
    channel: Worker = field(init=False)
    front: Worker = field(default_factory=Worker)

    def __post_init__(self) -> None:
        self.channel = Worker(self.engine.session)


@dataclass(frozen=True)
class Outcome:
    first_s: tuple[float, ...]  # time to first sound of every request that was heard, ascending
    audio_s_per_s: float
    gap_share: float

    def first_quantile_s(self, share: float) -> float:
        return self.first_s[min(len(self.first_s) - 1, int(share * len(self.first_s)))]


class Fleet:
    def __init__(self, engine: EngineTimes, replicas: int, *, host: HostTimes | None = None, seed: int = 0) -> None:
        """`host`: the machine whose cores the replicas share; None: each engine has its own device."""
        self.engine, self.host = engine, host
        carriers = Session()
        self.replicas = [Replica(front=Worker(carriers)) for _ in range(replicas)]
        self._cores = None if host is None else SharedHost(host)
        self._client, self._proxy = Worker(carriers), Worker(carriers)
        self._others = Worker()
        self._random = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = self._changes = 0
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
        if self.host is not None and self.host.others:
            self._post(0.0, self._take_cores)
        self._go_on(load.seconds if load.closed else None)
        firsts = sorted(s.first_s - s.came_s for s in self._streams if s.first_s is not None)
        gaps = sum(s.gap for s in self._streams) / max(1, len(self._streams))
        return Outcome(tuple(firsts), self._frames * self.engine.frame_s / max(self._end_s, 1e-9), gaps)

    def _go_on(self, until_s: float | None) -> None:
        """Go from each event to the next, until none is left or the time is over."""
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

    def _take_cores(self, now_s: float) -> None:
        """Use the cores for everything else that the machine does, a little at a time."""
        if self.host is None or self._cores is None or not (self._events or self._cores.next_s()):
            return
        if not self._others.work:
            self._cores.do(self._others, self.host.others * _OTHERS_EVERY_S, lambda now_s: None)
        self._post(now_s + _OTHERS_EVERY_S, self._take_cores)

    def _come(self, frames: int, now_s: float) -> None:
        stream = Stream(now_s, frames)
        self._streams.append(stream)
        if self.host is None:
            self._send(stream, now_s)
        else:
            way = [(self._client, self.host.client.request_s), (self._proxy, self.host.proxy.request_s)]
            self._pass_on(way, partial(self._send, stream), now_s)

    def _send(self, stream: Stream, now_s: float) -> None:
        replica = min(self.replicas, key=lambda r: (r.open, r.changed))
        self._count_open(replica, 1)
        arrive = partial(self._arrive, replica, stream)
        if self.host is None:
            arrive(now_s)
        else:
            way = [(replica.front, self.host.front.request_s), (replica.channel, self.host.channel.request_s)]
            self._pass_on(way, arrive, now_s)

    def _count_open(self, replica: Replica, more: int) -> None:
        self._changes += 1
        replica.open, replica.changed = replica.open + more, self._changes

    def _pass_on(self, way: list[tuple[Worker, float]], then: Callable[[float], None], now_s: float) -> None:
        """Let one worker after the other do its part, then call `then`."""
        if not way or self._cores is None:
            then(now_s)
            return
        (worker, seconds), *rest = way
        self._cores.do(worker, seconds, partial(self._pass_on, rest, then))

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
        ended = [s for s in replica.running if s.steps == s.frames + engine.last_steps]
        drawn = [s for s in replica.running if s.steps < s.frames + engine.last_steps]
        if len(drawn) > engine.batch:
            drawn = sorted(drawn, key=lambda s: s.ahead_s(now_s, engine.frame_s))[: engine.batch]
        for stream in drawn:
            stream.steps += 1
        chunks = self._chunks(ended, drawn, now_s)
        took_s = engine.step_s(len(drawn), new, sum(size for _, size in chunks))
        done = partial(self._step_done, replica, chunks)
        if self._cores is None:
            self._post(now_s + took_s, done)
        else:
            self._cores.do(replica.engine, took_s, done)

    def _chunks(self, ended: list[Stream], drawn: list[Stream], now_s: float) -> list[tuple[Stream, int]]:
        """Streams to decode in this step, and frames of each: the least sound buffered first, while there is room."""
        engine, frame_s = self.engine, self.engine.frame_s
        due = [(s, engine.last_chunk(s.frames - s.sounded)) for s in ended]
        wanted = [(s, engine.chunk_of(s.ahead_s(now_s, frame_s))) for s in drawn]
        due += [(s, size) for s, size in wanted if min(s.steps, s.frames) - s.sounded >= size]
        room, taken = engine.codec_frames, []
        for stream, size in sorted(due, key=lambda pair: pair[0].ahead_s(now_s, frame_s)):
            if size <= room:
                room -= size
                taken.append((stream, size))
        return taken

    def _step_done(self, replica: Replica, chunks: list[tuple[Stream, int]], now_s: float) -> None:
        made = {id(stream): min(size, stream.frames - stream.sounded) for stream, size in chunks}
        left = []
        for stream in replica.running:
            frames = made.get(id(stream), 0)
            if frames and stream.begun_s is None:
                stream.begun_s = now_s
            stream.sounded += frames
            last = stream.sounded == stream.frames and stream.steps == stream.frames + self.engine.last_steps
            if frames or last:
                self._carry(replica, stream, frames, last, now_s)
            if not last:
                left.append(stream)
        replica.running = left
        self._step(replica, now_s)

    def _carry(self, replica: Replica, stream: Stream, frames: int, last: bool, now_s: float) -> None:
        """Carry a chunk, and whether it was the last, from the engine to its listener."""
        hear = partial(self._hear, stream, frames, last)

        def passed(then_s: float) -> None:
            if last:
                self._count_open(replica, -1)
            client_s = 0.0 if self.host is None else self.host.client.chunk_s
            self._pass_on([(self._client, client_s)], hear, then_s)

        if self.host is None:
            passed(now_s)
        else:
            host = self.host
            way = [(replica.channel, host.channel.chunk_s), (replica.front, host.front.chunk_s)]
            self._pass_on([*way, (self._proxy, host.proxy.chunk_s)], passed, now_s)

    def _hear(self, stream: Stream, frames: int, last: bool, now_s: float) -> None:
        if stream.first_s is None:
            stream.first_s = now_s + self.engine.start_s
        elif frames and stream.heard * self.engine.frame_s < now_s - stream.first_s:
            stream.gap = True
        stream.heard += frames
        self._frames += frames
        if self._closed and last:  # A random delay keeps listeners out of step.
            self._post(now_s + self._random.uniform(0.0, 2.0) * self.engine.start_s, partial(self._come, stream.frames))
