"""Figures of the uploaded voices that front ends have in memory, in counters that all share: a scrape asks any one."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from sonant.voice_cache import VoiceCache


class VoiceFigures:
    """Used on the event loop only."""

    def __init__(self, cache: VoiceCache, registry: CollectorRegistry) -> None:
        self.cache = cache
        self.entries = Gauge(
            "sonant_voice_cache_entries", "uploaded voices in memory", multiprocess_mode="livesum", registry=registry
        )
        self.hits = Counter("sonant_voice_cache_hits", "uploaded voices that were found in memory", registry=registry)
        self.misses = Counter("sonant_voice_cache_misses", "uploaded voices that came from disk", registry=registry)
        self._told = (0, 0)

    def tell(self) -> None:
        """Count what has come since the last call."""
        before, self._told = self._told, (self.cache.hits, self.cache.misses)
        self.entries.set(len(self.cache))
        self.hits.inc(self._told[0] - before[0])
        self.misses.inc(self._told[1] - before[1])
