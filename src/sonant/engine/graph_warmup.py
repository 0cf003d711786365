"""The graphs that an engine is to have and has not captured yet, smallest batch first.

An engine answers when all of them are captured, or with `warm_rows` when its small batches are. The others then follow
one at a time, between steps, when the step loop finds that no listener would notice; how long one will take is told by
the last one of its kind.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
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
    number: int = 0  # among all, smallest batch first


class GraphWarmup:
    def __init__(self, wanted: Iterable[PendingGraph], pool: Any) -> None:
        in_order = sorted(wanted, key=lambda w: w.rows)
        self.pending = deque(replace(graph, number=n) for n, graph in enumerate(in_order))
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

    def up_to(self, rows: int) -> list[PendingGraph]:
        """Those that are left of batches of at most so many."""
        return [graph for graph in self.pending if graph.rows <= rows]

    def capture_next(self) -> None:
        self.capture(self.pending[0])

    def capture(self, wanted: PendingGraph) -> None:
        """In any order."""
        began_s = time.perf_counter()
        wanted.step.capture([wanted.bucket], self._pool)
        self._last_s[wanted.step.name] = time.perf_counter() - began_s
        self.pending = deque(graph for graph in self.pending if graph is not wanted)
        self.done += 1

    @property
    def may_skip(self) -> bool:
        """Whether larger ones may come before smaller ones, without which there is no engine."""
        return self._pool is None or self._pool.has_plenty()

    def give_up(self, beyond: int = 0) -> int:
        """Stay with the graphs that there are, and those of at most so many rows → how many will not be captured."""
        kept = self.up_to(beyond)
        given_up = len(self.pending) - len(kept)
        self.pending = deque(kept)
        return given_up
