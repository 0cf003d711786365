"""A machine whose cores engines share with what carries their sound: front ends, the proxy, and measuring clients.

Each worker is a thread of some process, and does one piece of work after the other. Cores are scheduled as Linux was
seen to do it: each core is shared evenly among sessions (an engine has one of its own), then among the threads of a
session. A thread that wakes preempts one whose session has had more time; otherwise the running thread keeps its core
for a turn. A waiting thread stays on its core, except for a migration now and then. So threads that carry sound seldom
wait, and of three engines on two cores one has a core while two share the other. Engines with a GPU each need none of
this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

_NOTHING_S = 1e-12


@dataclass(frozen=True, kw_only=True)
class Carrier:
    """Seconds of a core that one stage takes for each request on its way, and for each chunk on its way back."""

    request_s: float = 0.0
    chunk_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class HostTimes:
    """Measured times of everything but the engine's steps."""

    cores: int
    others: float = 0.0  # how many of the cores everything else on the machine takes
    turn_s: float = 4e-3  # how long a thread keeps its core: Linux checks at each of its ticks
    move_every_s: float = 0.08  # between migrations of a waiting thread from the busiest core, as traced
    credit_s: float = 1.4e-3  # advantage of a thread that slept over others: a slice of Linux's, on two cores
    client: Carrier = field(default_factory=Carrier)
    proxy: Carrier = field(default_factory=Carrier)
    front: Carrier = field(default_factory=Carrier)  # the process that answers HTTP
    channel: Carrier = field(default_factory=Carrier)  # the engine's thread that communicates with the front end


@dataclass(slots=True, eq=False)
class Session:
    """Threads that share their session's share of a core."""


@dataclass(slots=True, eq=False)
class Worker:
    session: Session = field(default_factory=Session)
    core: Core | None = None  # the one on which it ran last
    work: deque[tuple[float, Callable[[float], None]]] = field(default_factory=deque)
    left_s: float = 0.0  # of the current piece
    had_s: float = 0.0  # of its core; on waking at least its session's least, less a credit, since sleep earns nothing


@dataclass(slots=True, eq=False)
class Core:
    running: Worker | None = None
    ready: list[Worker] = field(default_factory=list)
    turn_s: float = 0.0  # left of the running worker's turn
    idle_s: float = 0.0  # how long no worker has run
    had_s: dict[Session, float] = field(default_factory=dict)  # by session, counted as for a worker
    least_s: float = 0.0  # the least that any awake session has had; never falls

    @property
    def awake(self) -> list[Worker]:
        return self.ready if self.running is None else [self.running, *self.ready]

    def place(self, worker: Worker) -> tuple[float, float]:
        """The worker's place in the queue: the least comes first."""
        return self.had_s[worker.session], worker.had_s

    def join(self, worker: Worker, credit_s: float) -> None:
        mates = [other.had_s for other in self.awake if other.session is worker.session]
        if not mates:
            self.had_s[worker.session] = max(self.had_s.get(worker.session, 0.0), self.least_s - credit_s)
        worker.had_s = max(worker.had_s if worker.core is self else 0.0, min(mates, default=0.0) - credit_s)
        worker.core = self
        self.ready.append(worker)

    def go_on(self, seconds: float) -> None:
        if self.running is None:
            self.idle_s += seconds
        else:
            self.running.left_s -= seconds
            self.running.had_s += seconds
            self.had_s[self.running.session] += seconds
            self.turn_s -= seconds
        self.least_s = max(self.least_s, min((self.had_s[each.session] for each in self.awake), default=0.0))

    def choose(self, turn_s: float) -> None:
        """Choose the worker that runs next, at the end of a turn or if none runs."""
        if self.running is not None and self.turn_s <= _NOTHING_S:
            self.turn_s = turn_s - max(0.0, -self.turn_s) % turn_s
            if self.ready and min(map(self.place, self.ready)) <= self.place(self.running):
                self.give_way()
        if self.running is None and self.ready:
            self.running, self.turn_s, self.idle_s = min(self.ready, key=self.place), turn_s, 0.0
            self.ready.remove(self.running)

    def give_way(self) -> None:
        assert self.running is not None
        self.ready.append(self.running)
        self.running = None


class SharedHost:
    """`now_s` never decreases. A piece of work that is done calls back with the time."""

    def __init__(self, host: HostTimes) -> None:
        self.now_s, self._host, self._move_at_s = 0.0, host, host.move_every_s
        self._cores = [Core() for _ in range(host.cores)]

    def do(self, worker: Worker, seconds: float, then: Callable[[float], None]) -> None:
        worker.work.append((seconds, then))
        if len(worker.work) == 1:
            worker.left_s = seconds
            self._wake(worker)

    def next_s(self) -> float | None:
        """When the next piece is done, turn is over or migration is due, unless work is added before."""
        ends_s = [core.running.left_s for core in self._cores if core.running is not None]
        ends_s += [core.turn_s for core in self._cores if core.running is not None and core.ready]
        if any(core.ready for core in self._cores):
            ends_s += [self._host.turn_s - core.idle_s for core in self._cores if core.running is None]
            ends_s.append(self._move_at_s - self.now_s)
        return self.now_s + max(0.0, min(ends_s)) if ends_s else None

    def go_to(self, now_s: float) -> None:
        """Advance to `now_s`, which is not after `next_s()`, and call back the pieces that are done by then."""
        told = []
        for core in self._cores:
            core.go_on(now_s - self.now_s)
            worker = core.running
            if worker is not None and worker.left_s <= _NOTHING_S:
                told.append(worker.work.popleft()[1])
                if worker.work:
                    worker.left_s = worker.work[0][0]
                else:
                    core.running = None
            core.choose(self._host.turn_s)
        self.now_s = now_s
        for then in told:
            then(now_s)
        self._balance()

    def _wake(self, worker: Worker) -> None:
        """Queue it where it ran last, or on a free core. It preempts a worker whose session has had more."""
        free = [core for core in self._cores if not core.awake]
        last = worker.core
        if last is None or (last.awake and free):
            last = free[0] if free else min(self._cores, key=lambda core: len(core.awake))
        last.join(worker, self._host.credit_s)
        if last.running is not None and last.place(worker) <= last.place(last.running):
            last.give_way()
        last.choose(self._host.turn_s)

    def _balance(self) -> None:
        """Move a waiting worker every `move_every_s`, and also to any core that has been idle for a turn."""
        fewest = min(self._cores, key=lambda core: len(core.awake))
        if self.now_s >= self._move_at_s - _NOTHING_S:
            self._move_at_s = self.now_s + self._host.move_every_s
            self._move_to(fewest)
        for core in self._cores:
            if core.running is None and core.idle_s >= self._host.turn_s - _NOTHING_S:
                core.idle_s = 0.0
                self._move_to(core)

    def _move_to(self, core: Core) -> None:
        most = max(self._cores, key=lambda other: len(other.awake))
        if most.ready and len(most.awake) > len(core.awake):
            moved = most.ready.pop(0)  # It has waited longest.
            core.join(moved, 0.0)
            core.choose(self._host.turn_s)
