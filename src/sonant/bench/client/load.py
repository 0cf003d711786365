"""How requests are spread over time: a number of listeners at once (closed loop), or of requests a second (open loop).

In a closed loop a listener asks again as soon as its answer has ended, so a slow server gets fewer requests. In an open
loop requests come as a Poisson process whatever the server does, as from people who do not know of each other.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import accumulate

from sonant.errors import ConfigError


@dataclass(frozen=True)
class Load:
    requests: int
    concurrency: int | None = None  # listeners of a closed loop
    rate: float | None = None  # requests a second of an open loop
    ramp_s: float = 0.0  # the listeners of a closed loop come in over this time
    seed: int = 0
    first: int = 0  # index of the first request's prompt; later requests go on from there

    def __post_init__(self) -> None:
        if (self.concurrency is None) == (self.rate is None):
            raise ConfigError("a load has either a concurrency or a rate")
        if self.requests < 1 or (self.concurrency is not None and self.concurrency < 1):
            raise ConfigError("a load needs at least one request and one listener")
        if self.rate is not None and not (self.rate > 0 and math.isfinite(self.rate)):
            raise ConfigError(f"a rate is a number of requests a second above 0, not {self.rate:g}")

    @property
    def label(self) -> str:
        return f"{self.concurrency}" if self.concurrency is not None else f"{self.rate:g}/s"

    def arrivals_s(self) -> list[float]:
        """When each request of an open loop is due, the same for the same seed."""
        assert self.rate is not None
        rng = random.Random(self.seed)
        return list(accumulate(rng.expovariate(self.rate) for _ in range(self.requests)))


@dataclass(frozen=True)
class Share:
    """One process's share of a load."""

    indices: tuple[int, ...]  # of its requests' prompts, modulo the number of prompts
    starts_s: tuple[float, ...]  # closed loop: when each listener begins; open loop: when each request is due


def shares(load: Load, processes: int) -> list[Share]:
    if load.rate is not None:
        due_s = load.arrivals_s()
        picks = [range(w, load.requests, processes) for w in range(processes)]
        return [Share(tuple(load.first + i for i in pick), tuple(due_s[i] for i in pick)) for pick in picks]
    assert load.concurrency is not None
    listeners = min(load.concurrency, load.requests)
    processes = min(processes, listeners)
    begins_s = [load.ramp_s * i / listeners for i in range(listeners)]
    said = range(load.first, load.first + load.requests)
    return [Share(tuple(said[w::processes]), tuple(begins_s[w::processes])) for w in range(processes)]
