"""Who may start now, and what is being spoken. Saying no early is kinder than a silence that a listener gives up on.

A request is refused when its client asks too often or has too many streams, when the queue is full, or when the first
sound would come too late: the queue ahead of it, times how long a request has lately had a row, over the rows. All
this is asked on the event loop, before anything costs a thread: of two hundred who come at once most are sent away.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from sonant.engine.stats import EngineStats
from sonant.errors import Overloaded
from sonant.serving.api.error_responses import Refused
from sonant.serving.options import ServeOptions

_MEMORY = 0.9  # of the running mean of request durations, for each request that ends
_MOST_CLIENTS = 10_000  # remembered by the rate limit; beyond that the one unheard of longest is forgotten


class InFlight:
    """What is being spoken now, so that a shutdown can wait for it and nothing new begins meanwhile.

    Used on the event loop only.
    """

    def __init__(self) -> None:
        self.running = 0
        self.draining = asyncio.Event()

    @contextmanager
    def one(self) -> Iterator[None]:
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1


class RateLimit:
    """How often one client may ask: a bucket of permits that fills up with time."""

    def __init__(self, per_minute: int) -> None:
        """0: no limit. A whole minute's requests may come at once."""
        self.per_minute = per_minute
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # permits left, and when

    def take(self, client: str, now_s: float, requests: int = 1) -> None:
        """Raises `Refused` with 429 and the time until there are permits again."""
        if not self.per_minute:
            return
        left, then_s = self._buckets.pop(client, (float(self.per_minute), now_s))
        left = min(self.per_minute, left + (now_s - then_s) * self.per_minute / 60)
        enough = left >= min(requests, self.per_minute)
        self._buckets[client] = (left - requests if enough else left, now_s)
        if len(self._buckets) > _MOST_CLIENTS:
            self._buckets.popitem(last=False)
        if not enough:
            message = f"more than {self.per_minute} requests a minute; slow down"
            raise Refused(429, "rate_limited", message, retry_s=(requests - left) * 60 / self.per_minute)


class Admission:
    def __init__(self, options: ServeOptions) -> None:
        self.options = options
        self.rate = RateLimit(options.max_requests_per_minute)
        self.active: Counter[str] = Counter()
        self.sessions = 0
        self.mean_request_s = 0.0

    def predicted_wait_s(self, stats: EngineStats) -> float:
        if stats.free_rows > stats.waiting:
            return 0.0
        return (stats.waiting - stats.free_rows + 1) * self.mean_request_s / stats.rows

    def check(self, client: str, stats: EngineStats, max_waiting: int, requests: int = 1) -> None:
        """Raises `Refused` or `Overloaded`, both 429, unless the client may ask now, and would hear something soon."""
        self.rate.take(client, time.monotonic(), requests)
        if stats.waiting >= max_waiting:  # The engine looks again, since others may be on their way to it.
            raise Overloaded(f"{stats.waiting} requests are waiting already; try again later")
        wait_s = self.predicted_wait_s(stats)
        if wait_s > self.options.max_first_audio_s:
            message = f"the first sound would come in about {wait_s:.0f} s; the server is full, try again later"
            raise Refused(429, "overloaded", message, retry_s=min(60.0, wait_s - self.options.max_first_audio_s + 1))

    @contextmanager
    def place(self, client: str) -> Iterator[None]:
        """One of the client's places, taken while a request runs or a session is open."""
        if self.active[client] >= self.options.max_streams_per_client:
            message = f"{self.active[client]} requests of yours are running, the most allowed; wait for one to end"
            raise Refused(429, "too_many_requests", message, retry_s=max(1.0, self.mean_request_s))
        self.active[client] += 1
        try:
            yield
        finally:
            self.active[client] -= 1
            if self.active[client] == 0:  # Clients come and go; only those that are here are kept.
                del self.active[client]

    @contextmanager
    def session(self, client: str) -> Iterator[None]:
        if self.sessions >= self.options.ws_max_sessions:
            raise Refused(429, "too_many_sessions", f"{self.sessions} sessions are open, the most allowed; try later")
        with self.place(client):
            self.sessions += 1
            try:
                yield
            finally:
                self.sessions -= 1

    def ended(self, seconds: float) -> None:
        known = self.mean_request_s
        self.mean_request_s = seconds if known == 0 else _MEMORY * known + (1 - _MEMORY) * seconds
