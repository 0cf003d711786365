"""Who may start now. An early refusal is kinder than a silence that a listener gives up on.

A request is refused when its client asks too often or has too many streams, when the queue is full, or when its first
sound would come too late. That is predicted from the engine's rows, those that others would lend, the queue, how long
rows have lately been held before they could go on to another (`EngineStats`), and the requests that were admitted and
are not in the engine's queue yet. The engine checks again: a request that waits there for longer is refused after all.

No client gets everything. One that is speaking already is refused when the first sound would take more than `OWN_SHARE`
of the time allowed, so that the rest of the queue stays for those who have nothing yet; and one client has at most as
many streams as there are rows and half of the places in the queue, unless the operator gives a number. It may have all
the rows, since those are lent to others as they need them.

All this is decided in the engine's process, which is one for all front ends, before a request costs a thread: of two
hundred that come at once most are refused. `Admission` is called from one thread.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from sonant.engine.telemetry import EngineStats
from sonant.errors import Overloaded
from sonant.serving.channel.messages import PlaceKind
from sonant.serving.options import ServeOptions
from sonant.serving.refused import Refused

OWN_SHARE = 0.75
_LONGEST_RETRY_S = 60.0
_MOST_CLIENTS = 10_000  # that the rate limit remembers; beyond that it forgets the one not seen for longest


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
        needed = min(requests, self.per_minute)  # a larger batch needs a full bucket, and owes the rest
        enough = left >= needed
        self._buckets[client] = (left - requests if enough else left, now_s)
        if len(self._buckets) > _MOST_CLIENTS:
            self._buckets.popitem(last=False)
        if not enough:
            self._refuse(needed, left)

    def look(self, client: str, now_s: float) -> None:
        """Raises as `take` would for one request, but takes nothing."""
        if self.per_minute and client in self._buckets:
            left, then_s = self._buckets[client]
            left += (now_s - then_s) * self.per_minute / 60
            if left < 1:
                self._refuse(1, left)

    def _refuse(self, requests: int, left: float) -> None:
        message = f"more than {self.per_minute} requests a minute; slow down"
        raise Refused(429, "rate_limited", message, retry_s=(requests - left) * 60 / self.per_minute)


class Ticket:
    """What an admitted client holds until it is closed: a place, and requests on their way to the engine."""

    def __init__(self, admission: Admission, client: str | None, requests: int) -> None:
        """`client`: whose place it holds; None: it holds none."""
        self._admission, self._client, self._on_the_way = admission, client, requests
        admission.on_the_way += requests

    def arrived(self) -> None:
        """One of its requests has reached the engine's queue, which now counts it, or never will."""
        if self._on_the_way:
            self._on_the_way -= 1
            self._admission.on_the_way -= 1

    def close(self) -> None:
        self._admission.on_the_way -= self._on_the_way
        self._on_the_way = 0
        if self._client is not None:
            self._admission.give_place_back(self._client)
            self._client = None


class Admission:
    def __init__(self, options: ServeOptions) -> None:
        self.options = options
        self.rate = RateLimit(options.max_requests_per_minute)
        self.active: Counter[str] = Counter()
        self.sessions = 0
        self.on_the_way = 0

    def admit(
        self, client: str, stats: EngineStats, max_waiting: int, *, requests: int = 1, place: bool = True
    ) -> Ticket:
        """Raises `Refused` or `Overloaded`, both 429, unless the client may ask now, and would hear something soon.

        Without `place` it takes none, since its session has one.
        """
        self.rate.take(client, time.monotonic(), requests)
        self._check_queue(stats, max_waiting)
        self._check_first_sound(client, stats, place)
        if place:
            self._take_place(client, stats, max_waiting)
        return Ticket(self, client if place else None, requests)

    def enter(
        self, place: ExitStack, client: str, kind: PlaceKind, requests: int, stats: EngineStats, max_waiting: int
    ) -> Ticket | None:
        """Take what this kind needs, to be given back with `place`. A ticket is for what will come to the queue."""
        if kind in ("speech", "utterance"):
            ticket = self.admit(client, stats, max_waiting, requests=requests, place=kind == "speech")
            place.callback(ticket.close)
            return ticket
        if kind == "session":
            place.enter_context(self.session(client, stats, max_waiting))
        elif kind == "upload":
            self.rate.take(client, time.monotonic())
        else:
            self._look(client, kind, stats, max_waiting)
        return None

    def _look(self, client: str, kind: PlaceKind, stats: EngineStats, max_waiting: int) -> None:
        """Raises what would refuse a client now, and takes nothing."""
        self.rate.look(client, time.monotonic())
        if kind == "look_speech":
            self._check_queue(stats, max_waiting)
            self._check_first_sound(client, stats, place=True)
            self._check_place(client, stats, max_waiting)

    def most_streams(self, stats: EngineStats, max_waiting: int) -> int:
        """How many one client may have at once."""
        given = self.options.max_streams_per_client
        return stats.rows + (max_waiting + 1) // 2 if given is None else given

    @contextmanager
    def session(self, client: str, stats: EngineStats, max_waiting: int) -> Iterator[None]:
        """One of the client's places, taken while a session is open."""
        if self.sessions >= self.options.ws_max_sessions:
            raise Refused(429, "too_many_sessions", f"{self.sessions} sessions are open, the most allowed; try later")
        self._take_place(client, stats, max_waiting)
        self.sessions += 1
        try:
            yield
        finally:
            self.sessions -= 1
            self.give_place_back(client)

    def give_place_back(self, client: str) -> None:
        self.active[client] -= 1
        if self.active[client] == 0:  # only clients that hold a place are kept
            del self.active[client]

    def _check_queue(self, stats: EngineStats, max_waiting: int) -> None:
        # Requests that find a row free will not wait, even if no step has seen them yet. Lendable rows count only for
        # those that are on their way. The engine checks again when they have come.
        queued = stats.waiting - stats.free_rows
        waiting = max(queued, queued + self.on_the_way - stats.lendable_rows)
        if waiting >= max_waiting:
            raise Overloaded(f"{waiting} requests are waiting already; try again later", self._retry_s(stats))

    def _check_first_sound(self, client: str, stats: EngineStats, place: bool) -> None:
        first_s = stats.first_sound_s(self.on_the_way)
        speaks = self.active[client] > (0 if place else 1)
        most_s = self.options.max_first_audio_s * (OWN_SHARE if speaks else 1)
        if first_s > most_s:
            message = f"the first sound would come in about {first_s:.0f} s; the server is full, try again later"
            raise Refused(429, "overloaded", message, retry_s=_within(first_s - most_s))

    def _retry_s(self, stats: EngineStats) -> float:
        """How long until one more would be heard in time."""
        return _within(stats.first_sound_s(self.on_the_way) - self.options.max_first_audio_s)

    def _take_place(self, client: str, stats: EngineStats, max_waiting: int) -> None:
        self._check_place(client, stats, max_waiting)
        self.active[client] += 1

    def _check_place(self, client: str, stats: EngineStats, max_waiting: int) -> None:
        running = self.active.get(client, 0)
        if running >= self.most_streams(stats, max_waiting):
            message = f"{running} requests of yours are running, the most allowed; wait for one to end"
            raise Refused(429, "too_many_requests", message, retry_s=_within(stats.whole_s))


def _within(retry_s: float) -> float:
    return min(_LONGEST_RETRY_S, max(1.0, retry_s))
