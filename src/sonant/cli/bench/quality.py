"""`sonant bench quality`: does a server still say the right words, in the right voice, under load?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sonant.cli.bench import target as bench_target
from sonant.cli.options import positive_numbers, whole_number
from sonant.cli.progress_line import ProgressLine
from sonant.errors import ConfigError
from sonant.exit_codes import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from sonant.bench.quality.judges import Judges
    from sonant.bench.quality.scores import Quality

EXIT_WORSE = 1
EXAMPLES = """
sonant bench quality --base-url http://localhost:8000 --asr whisper-folder --concurrency 1,16 --out quality.json
sonant bench quality --base-url http://localhost:8000 --asr base.en.pt --against before.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--asr", metavar="WHERE",
        help="Whisper checkpoint: a folder, a .pt or ggml file, or package:NAME/path in an installed package (default: "
        "none)",
    )  # fmt: skip
    parser.add_argument(
        "--speaker-model", metavar="FILE", type=Path,
        help="SpeechBrain's ECAPA-TDNN, to compare voices (default: Resemblyzer, if it is installed)",
    )  # fmt: skip
    parser.add_argument(
        "--concurrency", metavar="N,N…", default="1,8", help="listeners at once, for each level (default: 1,8)"
    )
    parser.add_argument(
        "--requests",
        metavar="N",
        type=whole_number(1),
        help="requests in each level (default: every prompt once, and at least one a listener)",
    )
    parser.add_argument(
        "--against", metavar="FILE", type=Path, help="earlier results; exit with 1 if quality got worse"
    )
    bench_target.add_target(parser)
    bench_target.add_prompts(parser)
    bench_target.add_client(parser)
    parser.add_argument("--out", metavar="FILE", type=Path, help="write every transcript and figure as JSON")


def run(args: argparse.Namespace) -> int:
    bench_target.need_bench_packages()
    from sonant.bench.quality.compare import quality_table
    from sonant.bench.quality.judges import Judges
    from sonant.bench.report import results

    results.check_places(args.out)
    earlier = results.read_json(args.against, "quality") if args.against else None
    judges = Judges.open(args.asr, args.speaker_model)
    print(f"judges: {', '.join(judges.names) or 'none but the length of the sound'}", file=sys.stderr)
    levels, facts = _measure(args, judges)
    if not levels:
        return EXIT_INTERRUPTED
    print(quality_table(levels))
    if args.out:
        data = facts | {"judges": judges.names, "levels": [q.to_json() for q in levels]}
        results.write_json(args.out, data, indent=1)
    return EXIT_WORSE if earlier is not None and _got_worse(earlier, levels) else 0


def _measure(args: argparse.Namespace, judges: Judges) -> tuple[list[Quality], dict[str, Any]]:
    from sonant.bench.client.load import Load
    from sonant.bench.client.sweep import Sweep
    from sonant.bench.client.worker_pool import WorkerPool
    from sonant.bench.quality.scores import judge_level
    from sonant.bench.report.results import FORMAT

    prompts, target = bench_target.prompts_of(args), bench_target.target_of(args)
    counts = positive_numbers(args.concurrency, "--concurrency", int)
    bench_target.check_requests(args.requests, counts)
    loads = [Load(args.requests or max(len(prompts), n), concurrency=n, seed=args.seed) for n in counts]
    processes = bench_target.processes_of(args, max(counts))
    line = ProgressLine(quiet=args.quiet)

    def show_judged(done: int, of: int) -> None:
        line.show(f"judged {done}/{of}")

    with WorkerPool(target, prompts, processes=processes, timeout_s=args.timeout) as pool:
        sweep = Sweep(target, pool, args.warmups, bench_target.show_progress(line))
        measured = list(sweep.levels(loads, keep_sound=True))
    line.clear()
    # Judging comes after all levels, since it would take the processor from a server on this machine.
    levels = [judge_level(level, prompts, target.response_format, judges, show_judged) for level in measured]
    line.clear()
    client = bench_target.client_facts(args, processes)
    return levels, {"format": FORMAT, "kind": "quality", "target": target.describe(), "client": client}


def _got_worse(earlier: Mapping[str, Any], levels: list[Quality]) -> bool:
    from sonant.bench.quality.compare import compare_quality
    from sonant.bench.quality.scores import Quality

    before = {q.label: q for q in (Quality.from_json(data) for data in earlier["levels"])}
    shared = [q for q in levels if q.label in before]
    if not shared:
        raise ConfigError("the earlier results have no load in common with these: use the same --concurrency")
    worse = False
    for q in shared:
        table, level_worse = compare_quality(before[q.label], q)
        print(table)
        worse = worse or level_worse
    return worse
