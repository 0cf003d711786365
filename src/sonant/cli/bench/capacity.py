"""`sonant bench capacity`: how many listeners can this server serve?"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from sonant.cli.bench import target as bench_target
from sonant.cli.options import number, whole_number
from sonant.cli.progress_line import ProgressLine
from sonant.errors import ConfigError
from sonant.exit_codes import EXIT_INTERRUPTED
from sonant.text_table import grid

if TYPE_CHECKING:
    from sonant.bench.client.capacity import Probe

EXAMPLES = """
sonant bench capacity --base-url http://localhost:8000 --ttfp 300
sonant bench capacity --base-url http://localhost:8000 --start 64 --most 512 --length medium
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ttfp",
        metavar="MS",
        type=number(0, above=True),
        default=500.0,
        help="longest time to the first sound, at p99 (default: 500)",
    )
    parser.add_argument(
        "--gap",
        metavar="MS",
        type=number(0),
        default=50.0,
        help="longest underrun that does not count as a gap (default: 50)",
    )
    parser.add_argument(
        "--share",
        metavar="PERCENT",
        type=float,
        default=99.0,
        help="share of streams that must have no gap (default: 99)",
    )
    parser.add_argument(
        "--confidence", metavar="PERCENT", type=float, default=95.0, help="confidence of the result (default: 95)"
    )
    parser.add_argument(
        "--start", metavar="N", type=whole_number(1), default=1, help="listeners to begin with (default: 1)"
    )
    parser.add_argument(
        "--most", metavar="N", type=whole_number(1), default=1024, help="most listeners to try (default: 1024)"
    )
    parser.add_argument(
        "--ramp", metavar="S", type=number(0), default=2.0, help="seconds over which listeners arrive (default: 2)"
    )
    bench_target.add_target(parser)
    bench_target.add_prompts(parser)
    bench_target.add_client(parser)
    parser.add_argument("--out", metavar="FILE", type=Path, help="write the result as JSON (default: nowhere)")


def run(args: argparse.Namespace) -> int:
    bench_target.need_bench_packages()
    from sonant.bench.client.capacity import Promise, Search
    from sonant.bench.client.load import Load
    from sonant.bench.client.load_level import LoadLevel
    from sonant.bench.client.sweep import Sweep
    from sonant.bench.client.worker_pool import WorkerPool
    from sonant.bench.report.results import check_places, write_json

    check_places(args.out)
    for option, value in (("--share", args.share), ("--confidence", args.confidence)):
        if not 50 <= value < 100:
            raise ConfigError(f"{option} must be a percentage from 50 to below 100, not {value:g}")
    promise = Promise(args.ttfp / 1e3, args.gap / 1e3, args.share / 100, args.confidence / 100)
    prompts, target = bench_target.prompts_of(args), bench_target.target_of(args)
    processes = bench_target.processes_of(args, args.most)
    line = ProgressLine(quiet=args.quiet)
    with WorkerPool(target, prompts, processes=processes, timeout_s=args.timeout) as pool:
        sweep = Sweep(target, pool, args.warmups, bench_target.show_progress(line))

        def measure(listeners: int, requests: int) -> LoadLevel:
            level = sweep.level(Load(requests, concurrency=listeners, ramp_s=args.ramp, seed=args.seed))
            if level is None:
                raise KeyboardInterrupt
            return level

        search = Search(measure, promise, start=args.start, most=args.most)
        try:
            found = search.run()
        except KeyboardInterrupt:
            line.clear()
            print(_probe_table(search.probes))
            print("interrupted: nothing was confirmed")
            return EXIT_INTERRUPTED
    line.clear()
    print(_probe_table(search.probes))
    print(_sentence(found.listeners, found.breaks_at, args))
    if args.out:
        facts = bench_target.client_facts(args, processes)
        data = {"kind": "capacity", "target": target.describe(), "client": facts, **asdict(found)}
        write_json(args.out, data, indent=1)
    return 0


def _probe_table(probes: list[Probe]) -> str:
    rows: list[tuple[str, ...]] = [("c", "requests", "gap-free", "in time", "counted", "holds")]
    for p in probes:
        shares = (f"{100 * n / p.requests:.1f}%" if p.requests else "-" for n in (p.gap_free, p.in_time))
        how = "confirmed" if p.confirmed else "quick look"
        holds = ("yes" if p.holds else "no") + (" (client late)" if p.client_limited else "")
        rows.append((str(p.listeners), str(p.requests), *shares, how, holds))
    return grid(rows)


def _sentence(listeners: int, breaks_at: int | None, args: argparse.Namespace) -> str:
    bound = f"{args.share:g} % of streams without a gap over {args.gap:g} ms and TTFP p99 within {args.ttfp:g} ms"
    if not listeners:
        return f"not even one listener gets {bound}, at {args.confidence:g} % confidence"
    above = f"; {breaks_at} did not hold" if breaks_at else f"; more than {args.most} were not tried"
    return f"holds {listeners} listeners with {bound}, at {args.confidence:g} % confidence{above}"
