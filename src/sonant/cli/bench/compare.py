"""`sonant bench compare`: did a change make a difference? For people, and for CI by its exit code."""

from __future__ import annotations

import argparse
from pathlib import Path

from sonant.cli.bench.target import need_bench_packages
from sonant.errors import ConfigError

EXIT_REGRESSED = 1
EXAMPLES = """
sonant bench compare before.json after.json
sonant bench compare main.json branch.json --threshold 5   exits with 1 when something is 5 % worse
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", metavar="BEFORE.json", type=Path)
    parser.add_argument("after", metavar="AFTER.json", type=Path)
    parser.add_argument(
        "--threshold", metavar="PERCENT", type=float, default=3.0, help="smallest change that counts (default: 3)"
    )
    parser.add_argument(
        "--confidence",
        metavar="PERCENT",
        type=float,
        default=95.0,
        help="confidence that the whole table is right (default: 95)",
    )


def run(args: argparse.Namespace) -> int:
    need_bench_packages()
    from sonant.bench.report import compare, results

    if not 50 <= args.confidence < 100:
        raise ConfigError(f"--confidence must be a percentage from 50 to below 100, not {args.confidence:g}")
    if not 0 <= args.threshold < 1000:
        raise ConfigError(f"--threshold must be a percentage from 0 to below 1000, not {args.threshold:g}")
    before, after = results.load(args.before), results.load(args.after)
    found = compare.compare(before, after, threshold=args.threshold / 100, confidence=args.confidence / 100)
    print(compare.table(found))
    return EXIT_REGRESSED if found.regressed else 0
