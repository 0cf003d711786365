"""The most listeners that a server holds, and how sure that is.

Quick probes find the load at which it breaks: first the load is doubled, then the interval is halved. Then the best
load is confirmed with as many requests as the confidence needs. For a share of 99 % at 95 % confidence that is 437
without a single bad one, as up to four looks share the chance of being wrong (299 if there is only one). A load that
is not confirmed is lowered until one is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from sonant.bench.client.load_level import LoadLevel
from sonant.errors import ConfigError

_QUICK_REQUESTS = 64
_LOWER = 0.9  # the factor from a load that was not confirmed to the next one
_MOST_EXTRA = 4  # looks that a confirmation may take; fewer if many listeners make each look larger


@dataclass(frozen=True)
class Promise:
    """The conditions under which a server holds a load."""

    ttfp_s: float = 0.5  # the bound of p99
    gap_s: float = 0.05  # a stream with no more underrun than this counts as free of gaps
    share: float = 0.99  # of the streams that must be good
    confidence: float = 0.95
    none_bad: bool = False  # not one stream may be bad; with enough of them that shows `share` at `confidence`

    def allows(self, good: int, count: int) -> bool:
        return good >= (count if self.none_bad else self.share * count)


@dataclass(frozen=True)
class Probe:
    listeners: int
    requests: int
    gap_free: int
    in_time: int  # first sound within the bound
    confirmed: bool  # probed with enough requests for the confidence, not only quickly
    holds: bool
    client_limited: bool


@dataclass(frozen=True)
class Capacity:
    promise: Promise
    listeners: int  # 0 if not even one was confirmed
    breaks_at: int | None  # the smallest load seen to fail; None if none did, up to the most that was tried
    probes: list[Probe] = field(default_factory=list)


Measure = Callable[[int, int], LoadLevel]  # (listeners, requests)


def needed_requests(promise: Promise) -> int:
    """How many requests show the share at the confidence if all are good."""
    return math.ceil(math.log(1 - promise.confidence) / math.log(promise.share))


def share_at_least(good: int, count: int, confidence: float) -> float:
    """The one-sided Clopper-Pearson bound: with this confidence the true share is at least what is returned."""
    if good == 0:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _chance_of_at_least(good, count, middle) > 1 - confidence:
            high = middle
        else:
            low = middle
    return low


def _chance_of_at_least(good: int, count: int, share: float) -> float:
    """The chance of `good` or more out of `count`, where each is good with the chance `share`."""
    if share in (0.0, 1.0):
        return share
    whole = math.lgamma(count + 1)
    return math.fsum(
        math.exp(
            whole
            - math.lgamma(k + 1)
            - math.lgamma(count - k + 1)
            + k * math.log(share)
            + (count - k) * math.log1p(-share)
        )
        for k in range(good, count + 1)
    )


class Search:
    def __init__(
        self,
        measure: Measure,
        promise: Promise,
        *,
        start: int = 1,
        most: int = 4096,
        resolution: float = 0.05,
        quick_requests: int = _QUICK_REQUESTS,
    ) -> None:
        self.measure, self.promise, self.start, self.most, self.resolution = measure, promise, start, most, resolution
        self.quick_requests = quick_requests  # the fewest of a quick probe
        self.probes: list[Probe] = []

    def run(self) -> Capacity:
        """Search. `probes` has what was measured, even after an interruption."""
        best, broke = self._find()
        while best:
            if self._confirm(best):
                break
            broke = best
            best = min(best - 1, math.floor(_LOWER * best))
        return Capacity(self.promise, best, broke, self.probes)

    def _find(self) -> tuple[int, int | None]:
        """The largest load that held in a quick probe, and the smallest that did not."""
        best, broke = 0, None
        listeners = min(self.start, self.most)
        while broke is None or broke - best > max(1, self.resolution * best):
            if self._probe_quickly(listeners):
                best = listeners
                if best == self.most:
                    break
            else:
                broke = listeners
            listeners = min(2 * best, self.most) if broke is None else (best + broke) // 2
            if listeners == best:
                break
        return best, broke

    def _probe_quickly(self, listeners: int) -> bool:
        level = self._measured(listeners, max(self.quick_requests, 2 * listeners))
        good = self._count(level)
        holds = all(self.promise.allows(g, good[2]) for g in good[:2])
        return self._note(listeners, good, _limited(level), holds=holds)

    def _confirm(self, listeners: int) -> bool:
        """Adds requests until the share is shown, or too many are bad. All looks share the chance of being wrong."""
        looks = self._looks(listeners)
        promise = replace(self.promise, confidence=1 - (1 - self.promise.confidence) / looks)
        total, limited = (0, 0, 0), False
        for _ in range(looks):
            level = self._measured(listeners, max(needed_requests(promise), 2 * listeners))
            limited = limited or _limited(level)
            gap_free, in_time, count = self._count(level)
            total = (total[0] + gap_free, total[1] + in_time, total[2] + count)
            bounds = [share_at_least(good, total[2], promise.confidence) for good in total[:2]]
            allowed = promise.allows(min(total[:2]), total[2])
            if allowed and min(bounds) >= promise.share:
                return self._note(listeners, total, limited, holds=True, confirmed=True)
            if not allowed:
                break
        return self._note(listeners, total, limited, holds=False, confirmed=True)

    def _looks(self, listeners: int) -> int:
        """How often the count may be judged. If no request may be bad, the first look decides."""
        least = needed_requests(self.promise)
        return 1 if self.promise.none_bad else math.ceil(_MOST_EXTRA * least / max(least, 2 * listeners))

    def _measured(self, listeners: int, requests: int) -> LoadLevel:
        level = self.measure(listeners, requests)
        if level.good and all(s.heard is None for s in level.good):
            raise ConfigError("gaps cannot be told in this format: measure capacity with streamed pcm or wav")
        if level.interrupted:
            raise KeyboardInterrupt
        return level

    def _count(self, level: LoadLevel) -> tuple[int, int, int]:
        """Streams without a gap, streams in time, and all of them. A failed one counts as neither."""
        gap_free = sum(s.heard is not None and s.heard.gap_s <= self.promise.gap_s for s in level.good)
        return gap_free, sum(s.ttfp_s <= self.promise.ttfp_s for s in level.good), len(level.samples)

    def _note(
        self, listeners: int, counts: tuple[int, int, int], limited: bool, *, holds: bool, confirmed: bool = False
    ) -> bool:
        gap_free, in_time, count = counts
        self.probes.append(Probe(listeners, count, gap_free, in_time, confirmed, holds, limited))
        return holds


def _limited(level: LoadLevel) -> bool:
    return level.client is not None and level.client.limited
