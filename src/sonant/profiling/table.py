"""A report as text for a terminal: what matters first, and not much more."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np

from sonant.profiling.finding import Finding, times
from sonant.profiling.report import ProfileReport
from sonant.text_table import grid

_HIDDEN = 0.01  # findings below this share are counted and not shown
_WIDTH = 118
_NEEDLESS = {"fills": "fill", "cats": "concatenation", "copies": "copy", "casts": "cast", "syncs": "sync"}
_LARGEST = 3


def report_text(report: ProfileReport, *, everything: bool = False) -> str:
    times = np.array(report.step_us)
    lines = [
        f"{report.trace} ({report.made_by}{', ' + report.gpu if report.gpu else ''})",
        f"{len(times)} steady steps, found by {report.steps_by}: {times.mean():,.0f} µs each "
        f"(p50 {np.percentile(times, 50):,.0f}, p99 {np.percentile(times, 99):,.0f}); device at work "
        f"{report.metrics['busy_us']:,.0f} µs, idle {report.metrics['idle_us']:,.0f} µs, "
        f"{report.metrics['kernels']:,.0f} kernels",
        "in a steady step: " + _needless(report),
        "",
        grid([("phase", "steps", "wall ms", "device ms", "most of it"), *_kind_rows(report)], words_left=True),
        "",
        grid([("a steady step", "µs", "share"), *_work_rows(report)], words_left=True),
        "",
        grid([("largest kernels", "a step", "µs", "share"), *_kernel_rows(report)], words_left=True),
        "",
        *_findings(report.findings, everything),
        *(
            line
            for remark in report.remarks
            for line in textwrap.wrap(f"note: {remark}", _WIDTH, subsequent_indent="  ")
        ),
    ]
    return "\n".join(lines)


def _kind_rows(report: ProfileReport) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for kind in report.phases:
        top = sorted(kind.by_work_ms.items(), key=lambda pair: -pair[1])[:3]
        told = ", ".join(f"{work} {ms:,.1f}" for work, ms in top)
        rows.append((kind.phase, str(kind.steps or "-"), f"{kind.wall_ms:,.1f}", f"{kind.busy_ms:,.1f}", told))
    return rows


def _work_rows(report: ProfileReport) -> list[tuple[str, ...]]:
    step = report.metrics["step_us"]
    rows = [(work, f"{us:,.1f}", f"{100 * us / step:.1f} %") for work, us in report.by_work_us.items()]
    idle = report.metrics["idle_us"]
    return [*rows[:9], ("idle", f"{idle:,.1f}", f"{100 * idle / step:.1f} %")]


def _needless(report: ProfileReport) -> str:
    return ", ".join(f"{times(report.metrics[name])} {told}" for name, told in _NEEDLESS.items())


def _kernel_rows(report: ProfileReport) -> list[tuple[str, ...]]:
    """The largest kernels by the time that they add to the step, not by their durations, which overlap."""
    step = report.metrics["step_us"]
    return [(k.name, times(k.count), f"{k.us:,.1f}", f"{100 * k.us / step:.1f} %") for k in report.kernels[:_LARGEST]]


def _findings(findings: Sequence[Finding], everything: bool) -> list[str]:
    shown = [f for f in findings if everything or f.share >= _HIDDEN]
    lines: list[str] = []
    for number, f in enumerate(shown, 1):
        lost = f"{'at most ' if f.at_most else ''}{f.lost_us:,.1f} µs a step, {100 * f.share:.1f} %"
        lines += textwrap.wrap(
            f"{number}. {f.title}: {lost}, {times(f.count)} a step [{f.rule}]", _WIDTH, subsequent_indent="   "
        )
        for e in f.evidence[: 6 if everything else 2]:
            source = f", by {e.source}" if e.source and e.source != e.what else ""
            lines += textwrap.wrap(
                f"{times(e.count)} {e.what}: {e.us:,.1f} µs{source}",
                _WIDTH,
                initial_indent="   - ",
                subsequent_indent="     ",
            )
        if f.source and not any(e.source == f.source for e in f.evidence):
            lines.append(f"   by {f.source}")
        lines += textwrap.wrap(f.fix, _WIDTH, initial_indent="   → ", subsequent_indent="     ")
    hidden = len(findings) - len(shown)
    if not shown:
        lines.append("no finding over 1 % of a step")
    if hidden:
        lines.append(f"({hidden} findings under 1 % of a step; --all shows them)")
    return [*lines, ""]
