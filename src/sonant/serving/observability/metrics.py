"""What front ends count, with Prometheus' conventions, in a registry of their own."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Iterator
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import InfoMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector

from sonant.engine.stream import SpeechStream
from sonant.serving.audio_pipeline import AudioPipeline
from sonant.serving.observability.shared_counters import shared_folder

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_TTFP_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0)
_RTF = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 5.0)
_GAP_S = (0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)

ROUTES = ("speech", "batch", "stream")
OUTCOMES = ("stop", "length", "bad_request", "refused", "error")
REJECTIONS = (
    "rate_limited", "overloaded", "too_many_requests", "too_many_sessions", "queue_full", "bodies_full",
    "too_many_clips", "too_late",
)  # fmt: skip
ABORTS = ("client_gone", "failed", "shutdown", "idle")


class Metrics:
    """Labels take few, fixed values: nothing that a client sends ever becomes one."""

    def __init__(self) -> None:
        self.registry = r = CollectorRegistry()
        self.process = ProcessCollector(registry=None)
        self.requests = Counter(
            "sonant_requests",
            "requests by route and by how they ended; every item of a batch and every utterance of a session is one",
            ["route", "outcome"],
            registry=r,
        )
        self.rejected = Counter("sonant_rejected", "requests turned away, by reason", ["reason"], registry=r)
        self.aborted = Counter(
            "sonant_aborted", "streams and sessions cut off after they began, by reason", ["reason"], registry=r
        )
        self.sessions = Gauge("sonant_sessions", "WebSockets that are open", multiprocess_mode="livesum", registry=r)
        self.audio = Counter("sonant_audio_seconds", "seconds of sound made for clients", registry=r)
        self.ttfp = Histogram(
            "sonant_ttfp_seconds", "from a request, or a clause of a session, to the first sound on the wire",
            buckets=_TTFP_S, registry=r,
        )  # fmt: skip
        self.rtf = Histogram("sonant_rtf_ratio", "seconds of work for a second of sound", buckets=_RTF, registry=r)
        self.underrun = Histogram(
            "sonant_underrun_seconds", "silence that a listener in real time would have heard in a stream",
            buckets=_GAP_S, registry=r,
        )  # fmt: skip
        self.underruns = Counter("sonant_underruns", "gaps that listeners in real time would have heard", registry=r)
        for route in ROUTES:
            for outcome in OUTCOMES:
                self.requests.labels(route, outcome)
        for reason in REJECTIONS:
            self.rejected.labels(reason)
        for reason in ABORTS:
            self.aborted.labels(reason)

    def count(self, route: str, stream: SpeechStream, pipeline: AudioPipeline, started_s: float) -> None:
        """Count an utterance that was sent to its end."""
        self.requests.labels(route, str(stream.finish_reason)).inc()
        self.count_sound(pipeline, started_s)

    def count_sound(self, pipeline: AudioPipeline, started_s: float) -> None:
        self.audio.inc(pipeline.audio_s)
        if pipeline.streaming:  # Files give way to streams, and nobody listens to one while it is made.
            heard = pipeline.listener()
            self.underrun.observe(heard.gap_s)
            self.underruns.inc(heard.gaps)
        if pipeline.audio_s:
            self.rtf.observe((time.monotonic() - started_s) / pipeline.audio_s)

    def families(self) -> Iterable[Metric]:
        """The metrics of all front ends, whose counters lie in files that all of them read."""
        folder = shared_folder()
        return self.registry.collect() if folder is None else MultiProcessCollector(None, folder).collect()

    def text(self, more: Iterable[Metric]) -> bytes:
        """The whole page, with `more`, which is not counted here. Figures of a process are of the one that is asked."""
        facts = {"version": version("sonant"), "python": platform.python_version(), "torch": version("torch")}
        build = InfoMetricFamily("sonant_build", "which build this is", facts)
        return generate_latest(_Page([*self.families(), build, *self.process.collect(), *more]))


class _Page(CollectorRegistry):
    def __init__(self, families: list[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families
