"""The engine's state and its telemetry at the moment of a scrape. Nothing is done for them while requests run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from sonant.serving.channel.engine_link import EngineLink
from sonant.serving.observability.engine_report import Counts, EngineReport

GPU_FIGURES = {
    "memory_used_bytes": "GPU memory in use, by all processes",
    "memory_total_bytes": "GPU memory there is",
    "utilisation_ratio": "share of the last sample period in which a kernel ran",
    "power_watts": "what the GPU draws",
    "temperature_celsius": "of the GPU's core",
}


def engine_families(link: EngineLink, report: EngineReport | None) -> Iterator[Metric]:
    """`report` is None while there is no engine."""
    yield GaugeMetricFamily("sonant_ready", "1 when requests are taken", float(link.ready))
    yield CounterMetricFamily("sonant_engine_restarts", "times a failed engine was loaded again", link.restarts)
    if report is not None:
        yield from _state(report)
        yield from _steps(report)
        yield from _weights(report)
        yield from _gpu(report.gpu or {})


def families_by_model(engines: Mapping[str, tuple[EngineLink, EngineReport | None]]) -> Iterator[Metric]:
    """The same of several engines, with the model as a label."""
    merged: dict[str, Metric] = {}
    for model, (link, report) in engines.items():
        for family in engine_families(link, report):
            known = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            known.samples += [s._replace(labels={**s.labels, "model": model}) for s in family.samples]
    yield from merged.values()


def _state(report: EngineReport) -> Iterator[Metric]:
    stats = report.stats
    for name, text, value in (
        ("sonant_requests_running", "requests that hold a row", stats["running"]),
        ("sonant_requests_waiting", "requests that wait for a row", stats["waiting"]),
        ("sonant_requests_parked", "requests whose row was lent to others, being ahead", stats["parked"]),
        ("sonant_rows", "requests that can run at once", stats["rows"]),
        ("sonant_rows_free", "rows that nobody holds", stats["free_rows"]),
        ("sonant_kv_blocks", "blocks of the KV cache", stats["blocks"]),
        ("sonant_kv_blocks_free", "blocks that nobody holds", stats["free_blocks"]),
    ):
        yield GaugeMetricFamily(name, text, float(value))
    yield CounterMetricFamily("sonant_engine_steps", "steps launched since the engine was loaded", stats["steps"])
    yield GaugeMetricFamily("sonant_front_ends", "processes that answer HTTP", float(report.front_ends))
    yield CounterMetricFamily(
        "sonant_broken_channels", "front ends that were cut off for what they sent", report.broken_channels
    )


def _steps(report: EngineReport) -> Iterator[Metric]:
    phases = HistogramMetricFamily(
        "sonant_step_phase_seconds",
        "host time of a step by phase: on a GPU prefill, frame and codec are launches, and wait is for the device",
        labels=["phase"],
    )
    for phase, tally in report.phase_s.items():
        phases.add_metric([phase], _buckets(tally), tally.total)
    yield phases
    rows = "rows that decoded a frame in a step: how full batches are"
    yield _histogram("sonant_step_rows", rows, report.tallies["rows"])
    yield CounterMetricFamily("sonant_parkings", "times that a row was lent to one in need", report.parkings)
    queue = "from a request's arrival in the engine to a row"
    yield _histogram("sonant_queue_wait_seconds", queue, report.tallies["queue_s"])
    yield _histogram(
        "sonant_first_step_seconds",
        "from a request's arrival in the engine to its first decode step come back: the time to its first token",
        report.tallies["first_step_s"],
    )
    yield _histogram(
        "sonant_time_per_step_seconds",
        "a request's mean time from one decode step to the next, at its end: its time a token",
        report.tallies["time_per_step_s"],
    )
    yield _histogram(
        "sonant_frames_ahead",
        "frames that a listener had buffered when the next chunk left the engine; 0 is a gap",
        report.tallies["frames_ahead"],
    )


def _weights(report: EngineReport) -> Iterator[Metric]:
    """All zero if all weights stay on the device."""
    paged = report.paged
    yield GaugeMetricFamily(
        "sonant_weights_host_bytes", "weights that lie in host memory and come when needed", report.host_weight_bytes
    )
    yield CounterMetricFamily("sonant_weights_paged_bytes", "weights brought to the device", paged.copied_bytes)
    waited = "time that passes through the model waited for weights, on the device"
    yield CounterMetricFamily("sonant_weights_wait_seconds", waited, paged.wait_s)
    passed = "time that passes through the model took on the device, where weights are paged"
    yield CounterMetricFamily("sonant_weights_pass_seconds", passed, paged.pass_s)


def _gpu(figures: dict[str, float]) -> Iterator[Metric]:
    for name, value in figures.items():
        yield GaugeMetricFamily(f"sonant_gpu_{name}", GPU_FIGURES[name], value)


def _histogram(name: str, text: str, tally: Counts) -> HistogramMetricFamily:
    return HistogramMetricFamily(name, text, buckets=_buckets(tally), sum_value=tally.total)


def _buckets(tally: Counts) -> list[tuple[str, float]]:
    bounds = [*(repr(b) for b in tally.bounds), "+Inf"]
    return list(zip(bounds, map(float, accumulate(tally.counts)), strict=True))
