"""Compares two reports: what fell, what rose, and how certain the change of the step's length is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sonant.profiling.report import ProfileReport
from sonant.text_table import grid

_RESAMPLES = 4000
_LEAST_STEPS = 8
_SMALL_US = 0.5  # changes below this are of no interest


@dataclass(frozen=True)
class Delta:
    what: str
    before: float
    after: float

    @property
    def by(self) -> float:
        return self.after - self.before


@dataclass(frozen=True)
class Diff:
    before: str
    after: str
    step_us: Delta
    interval: tuple[float, float] | None  # of the relative change, at 95 %; None if there are too few steps to tell
    metrics: list[Delta]
    works: list[Delta]
    findings: list[Delta]
    kernels: list[Delta]

    @property
    def verdict(self) -> str:
        if self.interval is None:
            return "too few steps to tell"
        low, high = self.interval
        return "faster" if high < 0 else "slower" if low > 0 else "no difference that can be told from noise"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}


def compare(before: ProfileReport, after: ProfileReport) -> Diff:
    old, new = np.array(before.step_us), np.array(after.step_us)
    return Diff(
        before=before.trace,
        after=after.trace,
        step_us=Delta("step_us, median", float(np.median(old)), float(np.median(new))),
        interval=median_ratio(old, new),
        metrics=_changes(before.metrics, after.metrics, least=0.005),
        works=_changes(before.by_work_us, after.by_work_us),
        findings=_changes({f.rule: f.lost_us for f in before.findings}, {f.rule: f.lost_us for f in after.findings}),
        kernels=_changes(_by_name(before), _by_name(after))[:15],
    )


def median_ratio(before: npt.NDArray[np.float64], after: npt.NDArray[np.float64]) -> tuple[float, float] | None:
    """95 % interval of the relative change of the median.

    Neighbouring steps are alike (a machine is slow for a while), so whole stretches are resampled, not steps.
    """
    if min(len(before), len(after)) < _LEAST_STEPS:
        return None
    random = np.random.default_rng(0)
    medians = []
    for times in (before, after):
        length = max(1, round(len(times) ** 0.5))
        starts = random.integers(len(times), size=(_RESAMPLES, -(-len(times) // length), 1))
        picks = (starts + np.arange(length)).reshape(_RESAMPLES, -1)[:, : len(times)] % len(times)
        medians.append(np.median(times[picks], axis=1))
    low, high = np.percentile(medians[1] / medians[0] - 1, [2.5, 97.5])
    return float(low), float(high)


def _by_name(report: ProfileReport) -> dict[str, float]:
    """The time of the kernels of each name: without types and parameters, names of several kernels are the same."""
    found: dict[str, float] = defaultdict(float)
    for kernel in report.kernels:
        found[kernel.name] += kernel.us
    return found


def _changes(before: Mapping[str, float], after: Mapping[str, float], least: float = _SMALL_US) -> list[Delta]:
    keys = dict.fromkeys([*before, *after])
    rows = [Delta(key, before.get(key, 0.0), after.get(key, 0.0)) for key in keys]
    return sorted((row for row in rows if abs(row.by) >= least), key=lambda row: -abs(row.by))


def diff_text(diff: Diff) -> str:
    step = diff.step_us
    sure = (
        ""
        if diff.interval is None
        else f", 95 % sure between {100 * diff.interval[0]:+.1f} and {100 * diff.interval[1]:+.1f} %"
    )
    change = 100 * step.by / step.before if step.before else 0.0
    blocks = [
        f"{diff.before} → {diff.after}",
        f"step {step.before:,.1f} → {step.after:,.1f} µs, {change:+.1f} %{sure}: {diff.verdict}",
    ]
    for title, rows in (
        ("counts and times a step", diff.metrics),
        ("µs a step by work", diff.works),
        ("µs a step by finding", diff.findings),
        ("µs a step by kernel", diff.kernels),
    ):
        if rows:
            table = [(title, "before", "after", "change")]
            table += [(r.what, f"{r.before:,.2f}", f"{r.after:,.2f}", f"{r.by:+,.2f}") for r in rows]
            blocks += ["", grid(table, words_left=True)]
    return "\n".join(blocks)
