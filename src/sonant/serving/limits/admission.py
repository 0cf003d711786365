"""Who may start now. Saying no early is kinder than a silence that a listener gives up on.

A request is refused when its client asks too often or has too many streams, when the queue is full, or when the first
sound would come too late: the queue ahead of it, times how long a request has lately held a row, over the rows. All
this is asked on the event loop, before anything costs a thread: of two hundred who come at once most are sent away.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from sonant.engine.engine import EngineStats
from sonant.errors import Overloaded
from sonant.serving.api.error_responses import Refused
from sonant.serving.limits.rate import RateLimit
from sonant.serving.options import ServeOptions

_MEMORY = 0.9  # of the running mean of request durations, for each request that ends


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
        if stats.waiting >= max_waiting:  # the engine looks again: others may be on their way to it
            raise Overloaded(f"{stats.waiting} requests are waiting already; try again later")
        wait_s = self.predicted_wait_s(stats)
        if wait_s > self.options.max_first_audio_s:
            message = f"the first sound would come in about {wait_s:.0f} s; the server is full, try again later"
            raise Refused(429, "overloaded", message, retry_s=min(60.0, wait_s - self.options.max_first_audio_s + 1))

    @contextmanager
    def place(self, client: str) -> Iterator[None]:
        """One of the client's places, held while a request runs or a session is open."""
        if self.active[client] >= self.options.max_streams_per_client:
            message = f"{self.active[client]} requests of yours are running, the most allowed; wait for one to end"
            raise Refused(429, "too_many_requests", message, retry_s=max(1.0, self.mean_request_s))
        self.active[client] += 1
        try:
            yield
        finally:
            self.active[client] -= 1
            if self.active[client] == 0:  # clients come and go: keep only those that are here
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
