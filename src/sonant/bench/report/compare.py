"""Compares two runs: what changed, how certain that is, and whether it matters.

A change counts only if the interval of its size excludes zero and it is larger than the threshold. The confidence
holds for the whole table, not for each row of it: twenty rows at 95 % each would find a difference in noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from sonant.bench.client.load_level import AUDIBLE_S, LoadLevel
from sonant.bench.client.sample import Sample
from sonant.bench.report.bootstrap import Array, Interval, mean, paired_ratio, unpaired
from sonant.bench.report.results import Run
from sonant.errors import ConfigError
from sonant.text_table import grid

POINTS = 0.01  # a share that changes by less does not matter


class Verdict(StrEnum):
    BETTER = "better"
    WORSE = "WORSE"
    SAME = "same"  # surely within the threshold, or a difference too small to matter
    UNCLEAR = "unclear"  # more requests are needed to tell


@dataclass(frozen=True)
class Change:
    level: str
    metric: str
    before: float
    after: float
    interval: Interval | None
    relative: bool
    verdict: Verdict


@dataclass(frozen=True)
class Comparison:
    changes: list[Change]
    remarks: list[str]
    confidence: float
    threshold: float

    @property
    def regressed(self) -> bool:
        return any(change.verdict is Verdict.WORSE for change in self.changes)


def _p99(values: Array) -> Array:
    result: Array = np.percentile(values, 99, axis=-1)
    return result


_TYPICAL: dict[str, Callable[[Sample], float]] = {
    "TTFP": lambda s: s.ttfp_s,
    "E2EL": lambda s: s.end_s,
    "RTF": lambda s: s.rtf,
}
_FIGURES_A_LEVEL = len(_TYPICAL) + 3  # with TTFP p99, the underrun rate and failures


def compare(before: Run, after: Run, *, threshold: float = 0.03, confidence: float = 0.95) -> Comparison:
    pairs = [(a, b) for a in before.levels for b in after.levels if _same_load(a, b)]
    if not pairs:
        raise ConfigError("the two runs have no load in common: run both with the same --concurrency or --rate")
    each = 1 - (1 - confidence) / (_FIGURES_A_LEVEL * len(pairs))
    changes = [change for a, b in pairs for change in _changes(a, b, threshold, each)]
    return Comparison(changes, _remarks(before, after, pairs), confidence, threshold)


def judge(interval: Interval | None, threshold: float) -> Verdict:
    """The verdict on a figure of which more is worse."""
    if interval is None:
        return Verdict.UNCLEAR
    if interval.low > 0 and interval.value >= threshold:
        return Verdict.WORSE
    if interval.high < 0 and interval.value <= -threshold:
        return Verdict.BETTER
    surely_small = -threshold < interval.low and interval.high < threshold
    small_and_real = abs(interval.value) < threshold and interval.low * interval.high > 0
    return Verdict.SAME if surely_small or small_and_real else Verdict.UNCLEAR


def table(result: Comparison) -> str:
    rows = [("c", "metric", "before", "after", "change", "interval", "verdict")]
    for c in result.changes:
        unit = " %" if c.relative else " pp"
        shown = [f"{100 * v:+.1f}" for v in (c.interval.value, c.interval.low, c.interval.high)] if c.interval else []
        rows.append(
            (
                c.level,
                c.metric,
                f"{c.before:.4g}",
                f"{c.after:.4g}",
                shown[0] + unit if shown else "-",
                f"{shown[1]} to {shown[2]}" if shown else "too few",
                c.verdict,
            )
        )
    worse = sum(c.verdict is Verdict.WORSE for c in result.changes)
    end = f"{worse} regressions" if worse else "no regression"
    if all(c.verdict is Verdict.UNCLEAR for c in result.changes):
        end = "too few requests, or too much noise, to tell a regression"
    end += f" over {100 * result.threshold:g} %, at {100 * result.confidence:g} % confidence for the whole table"
    return "\n".join([grid(rows), *result.remarks, end])


def _same_load(a: LoadLevel, b: LoadLevel) -> bool:
    return (a.load.concurrency, a.load.rate) == (b.load.concurrency, b.load.rate)


def _changes(a: LoadLevel, b: LoadLevel, threshold: float, confidence: float) -> list[Change]:
    name, changes = a.load.label, []

    def note(metric: str, old: float, new: float, interval: Interval | None, *, relative: bool) -> None:
        verdict = judge(interval, threshold if relative else POINTS)
        changes.append(Change(name, metric, old, new, interval, relative, verdict))

    if a.good and b.good:
        for metric, value in _TYPICAL.items():
            old, new = [(s.prompt, value(s)) for s in a.good], [(s.prompt, value(s)) for s in b.good]
            interval = paired_ratio(old, new, confidence)
            if interval is None:  # if few prompts are shared, whole runs are compared
                interval = unpaired(_second(old), _second(new), _median, confidence, relative=True)
            note(metric, float(np.median(_second(old))), float(np.median(_second(new))), interval, relative=True)
        first = [s.ttfp_s for s in a.good], [s.ttfp_s for s in b.good]
        interval = unpaired(first[0], first[1], _p99, confidence, relative=True)
        note(
            "TTFP p99", float(np.percentile(first[0], 99)), float(np.percentile(first[1], 99)), interval, relative=True
        )
    for metric, was, now in (("underrun rate", _underrun(a), _underrun(b)), ("failures", _failed(a), _failed(b))):
        if was and now:
            interval = unpaired(was, now, mean, confidence, relative=False)
            note(metric, float(np.mean(was)), float(np.mean(now)), interval, relative=False)
    if a.good and b.samples and not b.good:  # all failed: that is worse, however few they were
        changes[-1] = replace(changes[-1], verdict=Verdict.WORSE)
    return changes


def _median(values: Array) -> Array:
    result: Array = np.median(values, axis=-1)
    return result


def _second(rows: Sequence[tuple[str, float]]) -> list[float]:
    return [value for _, value in rows]


def _underrun(level: LoadLevel) -> list[float]:
    return [float(h.gap_s > AUDIBLE_S) for h in (s.heard for s in level.good) if h is not None]


def _failed(level: LoadLevel) -> list[float]:
    return [float(not s.ok) for s in level.samples]


def _remarks(before: Run, after: Run, pairs: list[tuple[LoadLevel, LoadLevel]]) -> list[str]:
    found = []
    for key in ("response_format", "stream", "sse", "voice", "extra_body", "connections"):
        if before.target.get(key) != after.target.get(key):
            found.append(f"NOTE: {key} differs: {before.target.get(key)!r} and {after.target.get(key)!r}")
    left_out = {v.load.label for run in (before, after) for v in run.levels} - {a.load.label for a, _ in pairs}
    if left_out:
        found.append(f"NOTE: in one of the runs only: {', '.join(sorted(left_out))}")
    for a, b in pairs:
        if {s.prompt for s in a.samples} != {s.prompt for s in b.samples}:
            found.append(f"NOTE: {a.load.label}: the prompts differ; only shared ones are paired")
        for run_name, level in (("before", a), ("after", b)):
            if level.client is not None and level.client.limited:
                found.append(f"WARNING: {level.load.label} {run_name}: the client limited the result")
    return found
