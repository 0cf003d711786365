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
    counts = positive_numbers(args.concurrency, "--concurrency", int)
    earlier = _earlier(args.against, counts) if args.against else None
    judges = Judges.open(args.asr, args.speaker_model)
    print(f"judges: {', '.join(judges.names) or 'none but the length of the sound'}", file=sys.stderr)
    levels, facts, whole = _measure(args, counts, judges)
    if not levels:
        return EXIT_INTERRUPTED
    print(quality_table(levels))
    if args.out:
        data = facts | {"judges": judges.names, "levels": [q.to_json() for q in levels]}
        results.write_json(args.out, data, indent=1)
    worse = earlier is not None and _got_worse(earlier, levels)
    if not whole:
        return EXIT_INTERRUPTED
    nothing = any(q.requests == q.failed for q in levels)  # a server that says nothing says nothing wrong
    return EXIT_WORSE if worse or nothing else 0


def _earlier(path: Path, counts: list[int]) -> dict[str, Quality]:
    """The earlier results by level, read before anything is measured."""
    from sonant.bench.quality.scores import Quality
    from sonant.bench.report.results import read_json

    data = read_json(path, "quality")
    try:
        found = {q.label: q for q in map(Quality.from_json, data["levels"])}
    except (KeyError, TypeError) as e:
        raise ConfigError(f"{path} is damaged: {type(e).__name__} {e}") from e
    if not found.keys() & set(map(str, counts)):
        raise ConfigError("the earlier results have no load in common with these: use the same --concurrency")
    return found


def _measure(args: argparse.Namespace, counts: list[int], judges: Judges) -> tuple[list[Quality], dict[str, Any], bool]:
    """The levels, the facts beside them, and whether nothing was interrupted."""
    from sonant.bench.client.load import Load
    from sonant.bench.client.sweep import Sweep
    from sonant.bench.client.worker_pool import WorkerPool
    from sonant.bench.quality.scores import judge_level
    from sonant.bench.report.results import FORMAT

    prompts, target = bench_target.prompts_of(args), bench_target.target_of(args)
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
    whole = len(measured) == len(loads) and not measured[-1].interrupted
    return levels, {"format": FORMAT, "kind": "quality", "target": target.describe(), "client": client}, whole


def _got_worse(earlier: Mapping[str, Quality], levels: list[Quality]) -> bool:
    from sonant.bench.quality.compare import compare_quality

    worse = False
    for q in levels:
        if q.label not in earlier:
            continue
        table, level_worse = compare_quality(earlier[q.label], q)
        print(table)
        worse = worse or level_worse
    return worse
