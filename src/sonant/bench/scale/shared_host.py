"""One machine whose cores engines share with what carries their sound: front ends, the proxy, and clients that measure.

Each worker is a thread of some process, and does one piece of work after the other. Cores are shared out as Linux was
seen to do it: each core evenly among sessions (an engine has one of its own), then among the threads of a session. Who
wakes takes the core of one whose session has had more, at once; else, who runs keeps its core for a turn. Who waits
stays with its core, but for a move now and then. So what carries sound seldom waits, and of three engines on two cores
one has a core while two share the other. With a GPU each, engines need none of this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

_NOTHING_S = 1e-12


@dataclass(frozen=True, kw_only=True)
class Carrier:
    """What one of those takes that requests go through and sound comes back by, in seconds of a core."""

    request_s: float = 0.0
    chunk_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class HostTimes:
    """As measured; all that is not the engine's steps."""

    cores: int
    others: float = 0.0  # of the cores, that all else on the machine takes
    turn_s: float = 4e-3  # for which who got a core keeps it: Linux looks at each of its ticks
    move_every_s: float = 0.08  # until one who waits is moved from the core that has more to do, as traced
    credit_s: float = 1.4e-3  # by which who slept goes before others: a slice of Linux's, on two cores
    client: Carrier = field(default_factory=Carrier)
    proxy: Carrier = field(default_factory=Carrier)
    front: Carrier = field(default_factory=Carrier)  # the process that answers HTTP
    channel: Carrier = field(default_factory=Carrier)  # the engine's thread that speaks with it


@dataclass(slots=True, eq=False)
class Session:
    """Threads that share what is their session's share of a core."""


@dataclass(slots=True, eq=False)
class Worker:
    session: Session = field(default_factory=Session)
    core: Core | None = None  # on which it ran last
    work: deque[tuple[float, Callable[[float], None]]] = field(default_factory=deque)
    left_s: float = 0.0  # of the piece that is being done
    had_s: float = 0.0  # of its core; no less than who had least when it woke, for sleep is not paid for


@dataclass(slots=True, eq=False)
class Core:
    running: Worker | None = None
    ready: list[Worker] = field(default_factory=list)
    turn_s: float = 0.0  # that is left to who runs
    idle_s: float = 0.0  # for which nobody has run
    had_s: dict[Session, float] = field(default_factory=dict)  # by session, counted as by worker
    least_s: float = 0.0  # that a session had which was awake

    @property
    def awake(self) -> list[Worker]:
        return self.ready if self.running is None else [self.running, *self.ready]

    def place(self, worker: Worker) -> tuple[float, float]:
        """In the queue, the least first."""
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
        """Who runs next: at the end of a turn, or when nobody does."""
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
    """`now_s` never goes back; what is done calls back with the time."""

    def __init__(self, host: HostTimes) -> None:
        self.now_s, self._host, self._move_at_s = 0.0, host, host.move_every_s
        self._cores = [Core() for _ in range(host.cores)]

    def do(self, worker: Worker, seconds: float, then: Callable[[float], None]) -> None:
        worker.work.append((seconds, then))
        if len(worker.work) == 1:
            worker.left_s = seconds
            self._wake(worker)

    def next_s(self) -> float | None:
        """When the next piece is done or the next turn is over, if nothing comes before."""
        ends_s = [core.running.left_s for core in self._cores if core.running is not None]
        ends_s += [core.turn_s for core in self._cores if core.running is not None and core.ready]
        if any(core.ready for core in self._cores):
            ends_s += [self._host.turn_s - core.idle_s for core in self._cores if core.running is None]
            ends_s.append(self._move_at_s - self.now_s)
        return self.now_s + max(0.0, min(ends_s)) if ends_s else None

    def go_to(self, now_s: float) -> None:
        """Until the next piece is done, at most; that is then called back."""
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
        """Where it ran last, or on a core that is free. It takes the core of one whose session has had more."""
        free = [core for core in self._cores if not core.awake]
        last = worker.core
        if last is None or (last.awake and free):
            last = free[0] if free else min(self._cores, key=lambda core: len(core.awake))
        last.join(worker, self._host.credit_s)
        if last.running is not None and last.place(worker) <= last.place(last.running):
            last.give_way()
        last.choose(self._host.turn_s)

    def _balance(self) -> None:
        """Now and then one who waits is moved, and at once to a core that has had nothing to do for a turn."""
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
