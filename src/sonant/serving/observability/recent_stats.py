"""Recent figures, as the difference of two readings of the counters.

Nothing is recorded for them while requests run. Requests are looked at over a minute, since there may be few of them;
steps over some seconds. A quantile comes from a histogram's buckets, as Prometheus would compute it, and so is only as
fine as they are.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.core import Metric

from sonant.engine.telemetry import STEP_PHASES, PagedTotals
from sonant.histogram import Buckets, quantile
from sonant.serving.observability.engine_report import EngineReport
from sonant.serving.observability.metrics import Metrics

WINDOW_S = 60.0
STEPS_WINDOW_S = 5.0
_LEAST_APART_S = 0.5  # between readings that are kept, however many callers ask


@dataclass(frozen=True)
class StepTotals:
    """Sums since the engine was loaded: they start again when it is loaded again."""

    loaded_s: float | None = None  # when that was; None: there was no engine
    count: int = 0
    phase_s: tuple[float, ...] = (0.0,) * len(STEP_PHASES)
    frame_steps: int = 0
    frames: float = 0.0  # of all rows
    audio_s: float = 0.0
    paged: PagedTotals = field(default_factory=PagedTotals)


@dataclass(frozen=True)
class Reading:
    at_s: float
    ttfp: Buckets
    rtf: Buckets
    rejected: float
    steps: StepTotals


@dataclass(frozen=True)
class RecentStats:
    window_s: float  # how far back the figures of requests reach
    requests: int  # those that got their first sound
    ttfp_p50_s: float | None
    ttfp_p99_s: float | None
    rtf_p50: float | None
    rejected: int
    steps_window_s: float  # how far back the figures of steps reach
    steps_per_s: float
    step_s: float | None  # mean; None: no steps
    step_phases_s: dict[str, float]
    batch_rows: float | None  # mean number of rows that decoded a frame in a step
    audio_s_per_s: float  # made for all listeners
    paged_bytes_per_s: float  # of weights that are brought from host memory
    weight_wait_share: float | None  # of the device's time in steps; None: all weights stay there, or no steps


class RecentStatsReader:
    """Call from one thread. The first answer reaches back to the start, later ones to the oldest reading kept."""

    def __init__(self, metrics: Metrics, now_s: float) -> None:
        self.metrics = metrics
        self._readings = deque([self._read(now_s, None)])

    def at(self, now_s: float, report: EngineReport | None) -> RecentStats:
        """`report` is the engine's own; None: there is none now."""
        new, readings = self._read(now_s, report), self._readings
        while len(readings) > 1 and readings[0].at_s < now_s - WINDOW_S:
            readings.popleft()
        old = readings[0]
        late = (r for r in readings if r.at_s >= now_s - STEPS_WINDOW_S and r.steps.loaded_s == new.steps.loaded_s)
        near = next(late, readings[-1])
        if now_s - readings[-1].at_s >= _LEAST_APART_S:
            readings.append(new)
        return RecentStats(**_requests(old, new), **_steps(near, new))

    def _read(self, now_s: float, report: EngineReport | None) -> Reading:
        known = {family.name: family for family in self.metrics.families()}
        ttfp, rtf = (_buckets(known.get(name)) for name in ("sonant_ttfp_seconds", "sonant_rtf_ratio"))
        return Reading(now_s, ttfp, rtf, _total(known.get("sonant_rejected")), _step_totals(report))


def _step_totals(report: EngineReport | None) -> StepTotals:
    if report is None:
        return StepTotals()
    rows = report.tallies["rows"]
    return StepTotals(
        loaded_s=report.loaded_s,
        count=int(report.stats["steps"]),
        phase_s=tuple(report.phase_s[phase].total for phase in STEP_PHASES),
        frame_steps=sum(rows.counts),
        frames=rows.total,
        audio_s=rows.total * report.frame_s,
        paged=report.paged,
    )


def _requests(old: Reading, new: Reading) -> dict[str, Any]:
    ttfp = _difference(new.ttfp, old.ttfp)
    return {
        "window_s": new.at_s - old.at_s,
        "requests": round(ttfp.get(math.inf, 0.0)),
        "ttfp_p50_s": quantile(ttfp, 0.5),
        "ttfp_p99_s": quantile(ttfp, 0.99),
        "rtf_p50": quantile(_difference(new.rtf, old.rtf), 0.5),
        "rejected": round(new.rejected - old.rejected),
    }


def _steps(old: Reading, new: Reading) -> dict[str, Any]:
    same, loaded_s = new.steps.loaded_s == old.steps.loaded_s, new.steps.loaded_s
    before = old.steps if same else StepTotals()  # Another engine began at zero, maybe long before this process did.
    since_s = old.at_s if same or loaded_s is None else min(old.at_s, loaded_s)
    window_s = max(new.at_s - since_s, 1e-3)
    count, frame_steps = new.steps.count - before.count, new.steps.frame_steps - before.frame_steps
    paged, paged_before = new.steps.paged, before.paged
    passed_s = paged.pass_s - paged_before.pass_s
    spent_s = [b - a for a, b in zip(before.phase_s, new.steps.phase_s, strict=True)]
    return {
        "steps_window_s": window_s,
        "steps_per_s": count / window_s,
        "step_s": sum(spent_s) / count if count else None,
        "step_phases_s": {p: s / count for p, s in zip(STEP_PHASES, spent_s, strict=True)} if count else {},
        "batch_rows": (new.steps.frames - before.frames) / frame_steps if frame_steps else None,
        "audio_s_per_s": (new.steps.audio_s - before.audio_s) / window_s,
        "paged_bytes_per_s": (paged.copied_bytes - paged_before.copied_bytes) / window_s,
        "weight_wait_share": (paged.wait_s - paged_before.wait_s) / passed_s if passed_s > 0 else None,
    }


def _buckets(histogram: Metric | None) -> dict[float, float]:
    counts: dict[float, float] = {}
    for sample in () if histogram is None else histogram.samples:
        if sample.name.endswith("_bucket"):
            bound = float(sample.labels["le"])
            counts[bound] = counts.get(bound, 0.0) + sample.value
    return counts


def _total(counter: Metric | None) -> float:
    return sum(s.value for s in counter.samples if s.name.endswith("_total")) if counter is not None else 0.0


def _difference(new: Buckets, old: Buckets) -> dict[float, float]:
    return {bound: count - old.get(bound, 0.0) for bound, count in new.items()}
