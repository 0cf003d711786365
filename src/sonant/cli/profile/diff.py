"""`sonant profile diff`: did a fix work? For people, and for CI by its exit code."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from sonant.cli.options import add_json
from sonant.cli.profile.output import add_budget, judge, reading_bar
from sonant.profiling.diff import compare, diff_text
from sonant.profiling.report import ProfileReport, load_report

EXAMPLES = """
sonant profile diff before.json.gz after.json.gz
sonant profile diff before.json after.json --assert "fills=0,step_us<=6000"   reports that `read --save` wrote
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", metavar="BEFORE", type=Path)
    parser.add_argument("after", metavar="AFTER", type=Path)
    parser.add_argument(
        "--step", metavar="NAME", help="name of the range that marks a step (default: found automatically)"
    )
    add_json(parser)
    add_budget(parser)


def run(args: argparse.Namespace) -> int:
    before, after = (_load(path, args.step) for path in (args.before, args.after))
    found = compare(before, after)
    print(json.dumps(found.to_json(), indent=1) if args.json else diff_text(found))
    return judge(args.budget, after)


def _load(path: Path, step: str | None) -> ProfileReport:
    with reading_bar(path) as on_read:
        return load_report(path, on_read, step_name=step)
