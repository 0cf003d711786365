"""Compares two quality runs prompt by prompt, with the interval of each difference."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from sonant.bench.quality.scores import Judged, Quality
from sonant.bench.report.bootstrap import Interval, mean, unpaired
from sonant.bench.report.compare import Verdict, judge
from sonant.text_table import grid

_COLUMNS = ("c", "ok", "WER", "CER", "MOS", "similarity", "too short", "runaway")

# Each figure with its value for a request, whether more of it is worse, and the least change that matters.
_FIGURES: dict[str, tuple[Callable[[Judged], float | None], bool, float]] = {
    "WER": (lambda r: None if not r.words else (r.word_errors or 0) / r.words, True, 0.01),
    "CER": (lambda r: None if not r.chars else (r.char_errors or 0) / r.chars, True, 0.005),
    "MOS": (lambda r: r.mos, False, 0.05),
    "similarity": (lambda r: r.similarity, False, 0.02),
    "too short": (lambda r: float(r.too_short), True, 0.01),
    "runaway": (lambda r: float(r.runaway), True, 0.01),
}


def quality_table(levels: Sequence[Quality]) -> str:
    rows: list[tuple[str, ...]] = [_COLUMNS]
    for q in levels:
        figures = (_percent(q.error_rate("word")), _percent(q.error_rate("char")))
        means = tuple("-" if v is None else f"{v:.3f}" for v in (q.mean("mos"), q.mean("similarity")))
        ends = (_percent(q.mean("too_short")), _percent(q.mean("runaway")))
        rows.append((q.label, f"{q.requests - q.failed}/{q.requests}", *figures, *means, *ends))
    return grid(rows)


def compare_quality(before: Quality, after: Quality, confidence: float = 0.95) -> tuple[str, bool]:
    """A table, and whether anything surely got worse."""
    each = 1 - (1 - confidence) / len(_FIGURES)
    rows: list[tuple[str, ...]] = [("c", "figure", "before", "after", "change", "interval", "verdict")]
    worse = False
    for name, (figure, more_is_worse, least) in _FIGURES.items():
        old, new = _by_prompt(before, figure), _by_prompt(after, figure)
        shared = sorted(old.keys() & new.keys())
        if not shared:
            continue
        differences = [new[p] - old[p] for p in shared]
        # The prompts are the same on both sides, so their differences are compared with zeros.
        interval = unpaired([0.0] * len(shared), differences, mean, each, relative=False)
        verdict = judge(interval if more_is_worse else _turned(interval), least)
        worse = worse or verdict is Verdict.WORSE
        means = [float(np.mean([side[p] for p in shared])) for side in (old, new)]
        spread = f"{interval.low:+.4f} to {interval.high:+.4f}" if interval else "too few"
        rows.append(
            (after.label, name, f"{means[0]:.4f}", f"{means[1]:.4f}", f"{means[1] - means[0]:+.4f}", spread, verdict)
        )
    return grid(rows), worse


def _by_prompt(quality: Quality, figure: Callable[[Judged], float | None]) -> dict[str, float]:
    groups: dict[str, list[float]] = defaultdict(list)
    for row in quality.rows:
        value = figure(row)
        if value is not None:
            groups[row.prompt].append(value)
    return {prompt: float(np.mean(values)) for prompt, values in groups.items()}


def _turned(interval: Interval | None) -> Interval | None:
    return None if interval is None else Interval(-interval.value, -interval.high, -interval.low)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f}%"
