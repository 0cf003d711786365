"""The graphs that an engine is to have and has not captured yet, smallest batch first.

An engine answers when all of them are captured, or with `warm_rows` when its small batches are. The others then follow
one at a time, between steps, when the step loop finds that no listener would notice; how long one will take is told by
the last one of its kind.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

_MARGIN = 2.0  # the next one is larger, and may find a kernel that is yet to be compiled


class Capturable(Protocol):
    name: str

    def capture(self, buckets: Iterable[Any], pool: Any) -> None: ...
    def captures(self, bucket: Any) -> tuple[Callable[[Any], Any], Any]:
        """What is run to be captured, and on what."""
        ...


@dataclass(frozen=True)
class PendingGraph:
    step: Capturable
    bucket: Any
    rows: int  # the largest batch that it serves


class GraphWarmup:
    def __init__(self, wanted: Iterable[PendingGraph], pool: Any) -> None:
        self.pending = deque(sorted(wanted, key=lambda w: w.rows))
        self.total, self.done = len(self.pending), 0
        self.held = False  # while somebody measures
        self._pool, self._last_s = pool, dict[str, float]()

    @property
    def share(self) -> float:
        """How much of it is done: 1 when every graph is there."""
        return self.done / self.total if self.total else 1.0

    @property
    def expected_s(self) -> float:
        """How long the next one will take; for ever, as far as anybody knows, if none of its kind was captured yet."""
        return _MARGIN * self._last_s.get(self.pending[0].step.name, float("inf"))

    def capture_up_to(self, rows: int, before: Callable[[int], None]) -> None:
        """`before` is called before each one, with how many there are by then."""
        while self.pending and self.pending[0].rows <= rows:
            before(self.done)
            self.capture_next()

    def capture_next(self) -> None:
        wanted, began_s = self.pending[0], time.perf_counter()
        wanted.step.capture([wanted.bucket], self._pool)
        self._last_s[wanted.step.name] = time.perf_counter() - began_s
        self.pending.popleft()
        self.done += 1

    def give_up(self) -> None:
        """Stay with the graphs that there are."""
        self.pending.clear()
