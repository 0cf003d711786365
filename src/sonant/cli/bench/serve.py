"""`sonant bench serve`: a speech server under load, ours or any other with OpenAI's speech API."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from pathlib import Path

from sonant.cli.bench import target as bench_target
from sonant.cli.options import number, positive_numbers, whole_number
from sonant.cli.progress_line import ProgressLine
from sonant.errors import ConfigError
from sonant.exit_codes import EXIT_INTERRUPTED

_LEAST_REQUESTS = 32
EXAMPLES = """
sonant bench serve --base-url http://localhost:8000 --concurrency 1,4,16 --out run.json
sonant bench serve --base-url http://localhost:8000 --rate 2,4 --requests 200 --html report.html
sonant bench serve --base-url http://localhost:8000 --extra-body '{"max_frames": 125}' --plots plots
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("load").add_mutually_exclusive_group()
    load.add_argument("--concurrency", metavar="N,N…", help="listeners at once, for each level (default: 1,4,16)")
    load.add_argument("--rate", metavar="R,R…", help="requests a second at random times, for each level")
    parser.add_argument(
        "--requests",
        metavar="N",
        type=whole_number(1),
        help="requests in each level (default: 4 a listener, at least 32)",
    )
    parser.add_argument(
        "--ramp",
        metavar="S",
        type=number(0),
        default=0.0,
        help="with --concurrency, seconds over which listeners arrive (default: 0, at once)",
    )
    bench_target.add_target(parser)
    bench_target.add_prompts(parser)
    bench_target.add_client(parser)
    parser.add_argument(
        "--note",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="note to keep with the results, such as gpu=H200; may be repeated",
    )
    parser.add_argument("--out", metavar="FILE", type=Path, help="write all samples as JSON (default: nowhere)")
    parser.add_argument("--plots", metavar="DIR", type=Path, help="draw four plots in this folder (default: none)")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a report in one file (default: none)")


def run(args: argparse.Namespace) -> int:
    bench_target.need_bench_packages()
    from sonant.bench.client.load import Load
    from sonant.bench.client.sweep import Sweep
    from sonant.bench.client.worker_pool import WorkerPool
    from sonant.bench.report import html, plots
    from sonant.bench.report.results import Run, check_places
    from sonant.bench.report.table import run_table

    if args.plots or args.html:
        plots.need_matplotlib()
    check_places(args.out, args.html, args.plots and args.plots / "ttfp.png")
    notes = _notes(args.note)
    if args.rate:
        if args.ramp:
            raise ConfigError("--ramp is for --concurrency: with --rate, requests come at random times from the start")
        rates = positive_numbers(args.rate, "--rate", float)
        loads = [Load(args.requests or _LEAST_REQUESTS, rate=rate, seed=args.seed) for rate in rates]
    else:
        counts = positive_numbers(args.concurrency or "1,4,16", "--concurrency", int)
        bench_target.check_requests(args.requests, counts)
        loads = [
            Load(args.requests or max(_LEAST_REQUESTS, 4 * n), concurrency=n, ramp_s=args.ramp, seed=args.seed)
            for n in counts
        ]
    prompts, target = bench_target.prompts_of(args), bench_target.target_of(args)
    processes = bench_target.processes_of(args, max(load.concurrency or load.requests for load in loads))
    result = Run.now(target.describe(), bench_target.client_facts(args, processes), notes, args.warmups)
    line = ProgressLine(quiet=args.quiet)
    # After Ctrl-C between two levels, what was measured is shown all the same.
    with suppress(KeyboardInterrupt), WorkerPool(target, prompts, processes=processes, timeout_s=args.timeout) as pool:
        for level in Sweep(target, pool, args.warmups, bench_target.show_progress(line)).levels(loads):
            result.levels.append(level)
    line.clear()
    if not result.levels:
        print("sonant: interrupted before anything was measured", file=sys.stderr)
        return EXIT_INTERRUPTED
    print(run_table(result))
    if args.out:
        result.save(args.out)
    if args.plots:
        plots.save(result, args.plots)
    if args.html:
        html.write(result, args.html)
    if result.interrupted or len(result.levels) < len(loads):
        return EXIT_INTERRUPTED
    return 0 if all(level.summary.ok for level in result.levels) else 1


def _notes(pairs: list[str]) -> dict[str, str]:
    split = [pair.partition("=") for pair in pairs]
    if bad := [key for key, equals, _ in split if not equals]:
        raise ConfigError(f"--note takes KEY=VALUE, not {bad[0]!r}")
    return {key: value for key, _, value in split}
