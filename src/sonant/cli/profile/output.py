"""What commands that analyze a trace have in common: how to analyze it, what to write, and what a step may cost."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sonant.cli.options import number
from sonant.cli.progress_line import ProgressLine
from sonant.cli.sound_file import OutputError
from sonant.errors import ConfigError
from sonant.profiling.analysis import Analysis, analyze
from sonant.profiling.budget import broken_limits, parse_budget
from sonant.profiling.events import OnRead, Trace
from sonant.profiling.page import write_page
from sonant.profiling.perfetto import write_perfetto
from sonant.profiling.read import read_trace
from sonant.profiling.report import ProfileReport, make_report, save_report
from sonant.profiling.table import report_text

EXIT_OVER_BUDGET = 1
_BAR_WIDTH = 30


def add_analysis(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--step",
        metavar="NAME",
        help="name, or part of it, of the range that marks a step (default: found automatically)",
    )
    parser.add_argument(
        "--bandwidth",
        metavar="GB/S",
        type=number(0, above=True),
        help="the GPU's memory bandwidth (default: by the GPU's name)",
    )


def add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="show findings under 1 %% too (default: off)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON (default: off)")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page with charts (default: nowhere)")
    parser.add_argument("--save", metavar="FILE", type=Path, help="write the report, for `diff` (default: nowhere)")
    parser.add_argument(
        "--perfetto", metavar="FILE", type=Path, help="write a trace with the findings marked (default: nowhere)"
    )


def add_budget(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--assert", metavar="LIMITS", dest="budget", type=_budget,
        help='limits on a step, such as "fills=0,syncs=0,kernels<=1300"; exit with 1 if it exceeds one (default: none)',
    )  # fmt: skip


def _budget(text: str) -> str:
    try:
        parse_budget(text)  # here, and not after minutes of reading
    except ConfigError as e:
        raise argparse.ArgumentTypeError(str(e)) from None
    return text


@contextmanager
def reading_bar(path: Path) -> Iterator[OnRead]:
    """Shows how much of a file has been read, and how long the rest will take."""
    line, started_s = ProgressLine(), time.monotonic()

    def show(share: float) -> None:
        full = round(_BAR_WIDTH * share)
        left = f", {(time.monotonic() - started_s) * (1 - share) / share:.0f} s left" if share > 0.02 else ""
        line.show(f"reading {path.name} {'█' * full}{'░' * (_BAR_WIDTH - full)} {100 * share:.0f} %{left}")

    try:
        yield show
    finally:
        line.clear()


def _read(path: Path) -> Trace:
    with reading_bar(path) as on_read:
        return read_trace(path, on_read)


def show(args: argparse.Namespace, path: Path, mapping: Path | None) -> int:
    """Analyze a trace, print and write what was asked for, and return the exit code."""
    second = _read(mapping) if mapping is not None else None
    bandwidth = 1e9 * args.bandwidth if args.bandwidth else None
    analysis = analyze(_read(path), step_name=args.step, mapping=second, bandwidth=bandwidth)
    report = make_report(analysis, str(path))
    _write(args, analysis, report)
    print(json.dumps(report.to_json(), indent=1) if args.json else report_text(report, everything=args.all))
    return judge(args.budget, report)


def _write(args: argparse.Namespace, analysis: Analysis, report: ProfileReport) -> None:
    try:
        if args.html:
            write_page(analysis, report, args.html)
        if args.save:
            save_report(report, args.save)
        if args.perfetto:
            write_perfetto(analysis, report.findings, args.perfetto)
    except OSError as e:
        raise OutputError(f"cannot write {e.filename}: {e.strerror}") from e


def judge(budget: str | None, report: ProfileReport) -> int:
    broken = broken_limits(budget, report.metrics) if budget else []
    for line in broken:
        print(f"sonant: over budget: {line}", file=sys.stderr)
    return EXIT_OVER_BUDGET if broken else 0
