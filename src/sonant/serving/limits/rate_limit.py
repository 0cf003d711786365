"""How often one client may ask."""

from __future__ import annotations

from collections import OrderedDict

from sonant.serving.api.error_responses import Refused

_MOST_CLIENTS = 10_000  # remembered; beyond that the one unheard of longest is forgotten


class RateLimit:
    """A bucket of permits for each client that fills up with time."""

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
