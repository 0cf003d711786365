"""`sonant profile read`: what a trace of any engine shows."""

from __future__ import annotations

import argparse
from pathlib import Path

from sonant.cli.profile.output import add_analysis, add_budget, add_output, show

EXAMPLES = """
sonant profile read trace.json.gz
sonant profile read graphs.json.gz --mapping eager.json.gz --html report.html
sonant profile read report.sqlite --step decode --perfetto marked.json.gz
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", metavar="TRACE", type=Path)
    parser.add_argument(
        "--mapping", metavar="TRACE", type=Path,
        help="a second trace, without CUDA graphs and with stacks, that shows where kernels come from (default: none)",
    )  # fmt: skip
    add_analysis(parser)
    add_output(parser)
    add_budget(parser)


def run(args: argparse.Namespace) -> int:
    return show(args, args.trace, args.mapping)
