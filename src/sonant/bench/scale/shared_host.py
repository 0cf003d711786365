"""One machine whose cores engines share with what carries their sound: front ends, the proxy, and clients that measure.

Each worker is a thread of some process, and does one piece of work after the other. Those who have any share the cores
evenly, none faster than a whole one. With a GPU each, engines need none of this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class HostTimes:
    """Seconds of a core, as measured; all that is not the engine's."""

    cores: float  # that are left to all of these
    front_request_s: float = 0.0  # of the process that answers HTTP: a request
    front_frame_s: float = 0.0  # … each frame of its sound
    client_request_s: float = 0.0  # of proxy and clients
    client_frame_s: float = 0.0


@dataclass(slots=True)
class Worker:
    work: deque[tuple[float, Callable[[float], None]]] = field(default_factory=deque)
    left_s: float = 0.0  # of the piece that is being done


class SharedHost:
    """`now_s` never goes back; what is done calls back with the time."""

    def __init__(self, cores: float) -> None:
        self.cores, self.now_s = cores, 0.0
        self._busy: list[Worker] = []

    def do(self, worker: Worker, seconds: float, then: Callable[[float], None]) -> None:
        worker.work.append((seconds, then))
        if len(worker.work) == 1:
            worker.left_s = seconds
            self._busy.append(worker)

    def next_s(self) -> float | None:
        """When the next piece is done, if nothing comes before."""
        if not self._busy:
            return None
        return self.now_s + min(worker.left_s for worker in self._busy) / self._rate()

    def go_to(self, now_s: float) -> None:
        """Until the next piece is done, at most; that is then called back."""
        done_s = (now_s - self.now_s) * self._rate()
        self.now_s = now_s
        for worker in self._busy:
            worker.left_s -= done_s
        ended = [worker for worker in self._busy if worker.left_s <= 1e-12]
        for worker in ended:
            _, then = worker.work.popleft()
            if worker.work:
                worker.left_s = worker.work[0][0]
            else:
                self._busy.remove(worker)
            then(now_s)

    def _rate(self) -> float:
        return min(1.0, self.cores / len(self._busy)) if self._busy else 1.0
