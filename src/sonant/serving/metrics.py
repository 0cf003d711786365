"""What the server counts, with Prometheus' conventions, in a registry of its own."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sonant.engine.engine import EngineStats
from sonant.serving.host import EngineHost

_TTFP_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0)
_RTF = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 5.0)
_GAP_S = (0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class EngineCollector(Collector):
    """The engine's state at the moment of the scrape."""

    def __init__(self, host: EngineHost) -> None:
        self.host = host

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("sonant_ready", "1 when requests are taken", float(self.host.ready))
        yield GaugeMetricFamily("sonant_engine_restarts", "times the engine was loaded again", self.host.restarts)
        if not self.host.ready:
            return
        stats: EngineStats = self.host.engine.stats()
        for name, text, value in (
            ("sonant_requests_running", "requests that hold a row", stats.running),
            ("sonant_requests_waiting", "requests that wait for a row", stats.waiting),
            ("sonant_rows", "requests that can run at once", stats.rows),
            ("sonant_rows_free", "rows that nobody holds", stats.free_rows),
            ("sonant_kv_blocks", "blocks of the KV cache", stats.blocks),
            ("sonant_kv_blocks_free", "blocks that nobody holds", stats.free_blocks),
            ("sonant_steps", "steps launched since the engine started", stats.steps),
        ):
            yield GaugeMetricFamily(name, text, float(value))


class Metrics:
    def __init__(self, host: EngineHost) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(EngineCollector(host))
        r = self.registry
        self.requests = Counter("sonant_requests", "requests by how they ended", ["outcome"], registry=r)
        self.rejected = Counter("sonant_rejected", "requests turned away, by reason", ["reason"], registry=r)
        self.aborted = Counter("sonant_aborted", "streams cut off, by reason", ["reason"], registry=r)
        self.audio = Counter("sonant_audio_seconds", "seconds of sound sent", registry=r)
        self.ttfp = Histogram("sonant_ttfp_seconds", "request to first sound on the wire", buckets=_TTFP_S, registry=r)
        self.rtf = Histogram("sonant_rtf", "seconds of work for a second of sound", buckets=_RTF, registry=r)
        self.underrun = Histogram(
            "sonant_underrun_seconds",
            "silence that a listener in real time would have heard",
            buckets=_GAP_S,
            registry=r,
        )

    def text(self) -> bytes:
        return generate_latest(self.registry)
