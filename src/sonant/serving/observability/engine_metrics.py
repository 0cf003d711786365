"""The engine's state and its telemetry at the moment of a scrape. Nothing is done for it while requests run."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from sonant.engine.telemetry import EngineStats, Tally, Telemetry
from sonant.serving.engine_supervisor import EngineSupervisor
from sonant.voice_cache import VoiceCache


class EngineCollector(Collector):
    def __init__(self, supervisor: EngineSupervisor, voices: VoiceCache | None) -> None:
        self.supervisor, self.voices = supervisor, voices

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("sonant_ready", "1 when requests are taken", float(self.supervisor.ready))
        yield CounterMetricFamily(
            "sonant_engine_restarts", "times a failed engine was loaded again", self.supervisor.restarts
        )
        if self.voices is not None:
            yield from _voices(self.voices)
        engine = self.supervisor.loaded
        if engine is not None:
            yield from _state(engine.stats())
            yield from _steps(engine.telemetry)


def _state(stats: EngineStats) -> Iterator[Metric]:
    for name, text, value in (
        ("sonant_requests_running", "requests that hold a row", stats.running),
        ("sonant_requests_waiting", "requests that wait for a row", stats.waiting),
        ("sonant_requests_parked", "requests whose row was lent to others, being ahead", stats.parked),
        ("sonant_rows", "requests that can run at once", stats.rows),
        ("sonant_rows_free", "rows that nobody holds", stats.free_rows),
        ("sonant_kv_blocks", "blocks of the KV cache", stats.blocks),
        ("sonant_kv_blocks_free", "blocks that nobody holds", stats.free_blocks),
    ):
        yield GaugeMetricFamily(name, text, float(value))
    yield CounterMetricFamily("sonant_engine_steps", "steps launched since the engine was loaded", stats.steps)


def _steps(telemetry: Telemetry) -> Iterator[Metric]:
    phases = HistogramMetricFamily(
        "sonant_step_phase_seconds",
        "host time of a step by phase: on a GPU prefill, frame and codec are launches, and wait is for the device",
        labels=["phase"],
    )
    for phase, tally in telemetry.phase_s.items():
        phases.add_metric([phase], _buckets(tally), tally.total)
    yield phases
    yield _histogram("sonant_step_rows", "rows that decoded a frame in a step: how full batches are", telemetry.rows)
    yield CounterMetricFamily("sonant_parkings", "times that a row was lent to one in need", telemetry.parkings)
    yield _histogram("sonant_queue_wait_seconds", "from a request's arrival in the engine to a row", telemetry.queue_s)
    yield _histogram(
        "sonant_first_step_seconds",
        "from a request's arrival in the engine to its first decode step come back: the time to its first token",
        telemetry.first_step_s,
    )
    yield _histogram(
        "sonant_time_per_step_seconds",
        "a request's mean time from one decode step to the next, at its end: its time a token",
        telemetry.time_per_step_s,
    )
    yield _histogram(
        "sonant_frames_ahead",
        "frames that a listener had buffered when the next chunk left the engine; 0 is a gap",
        telemetry.frames_ahead,
    )


def _voices(cache: VoiceCache) -> Iterator[Metric]:
    yield GaugeMetricFamily("sonant_voice_cache_entries", "uploaded voices in memory", float(len(cache)))
    yield CounterMetricFamily("sonant_voice_cache_hits", "uploaded voices that were found in memory", cache.hits)
    yield CounterMetricFamily("sonant_voice_cache_misses", "uploaded voices that came from disk", cache.misses)


def _histogram(name: str, text: str, tally: Tally) -> HistogramMetricFamily:
    return HistogramMetricFamily(name, text, buckets=_buckets(tally), sum_value=tally.total)


def _buckets(tally: Tally) -> list[tuple[str, float]]:
    bounds = [*(repr(b) for b in tally.bounds), "+Inf"]
    return list(zip(bounds, map(float, accumulate(tally.counts)), strict=True))
