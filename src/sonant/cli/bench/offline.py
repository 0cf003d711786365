"""`sonant bench offline`: how fast the engine is on this machine, without a network in between."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sonant import load
from sonant.cli.bench.facts import machine_facts
from sonant.cli.model_folder import given_codec, model_folder
from sonant.cli.options import (
    DTYPES,
    add_codec,
    add_kv_cache_dtype,
    add_model,
    add_quantize,
    number,
    positive_numbers,
    whole_number,
)
from sonant.collector import freeze_what_is_alive
from sonant.config import EngineConfig
from sonant.errors import ConfigError
from sonant.loading import pick_device

if TYPE_CHECKING:
    from sonant.bench.engine.offline import OfflineReport
    from sonant.bench.engine.startup import Startup
    from sonant.bench.engine.sustained_listeners import SustainedListeners
    from sonant.engine.engine import Engine

EXAMPLES = """
sonant bench offline --model model --streams 1,4 --frames 25
sonant bench offline --model model --measure all --device cuda --out report.json --plot report.png
sonant bench offline --model model --measure held --held-frames 60 --first-audio 300
"""
MEASUREMENTS = ("streams", "steps", "saturated", "held", "startup")
_DEFAULT = ("streams", "steps", "saturated")
_STREAMS = {"cuda": "1,4,16,64,128,256", "cpu": "1,2,4"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_codec(parser)
    add_kv_cache_dtype(parser)
    add_quantize(parser)
    parser.add_argument(
        "--streams", metavar="N,N…",
        help="streams at once, for each level (default: 1,4,16,64,128,256 on a GPU, 1,2,4 on a CPU); the largest is "
        "also the engine's number of rows",
    )  # fmt: skip
    parser.add_argument(
        "--frames", metavar="N", type=whole_number(1), default=125,
        help="frames of each request; `sonant voices` shows how many make a second (default: 125)",
    )  # fmt: skip
    parser.add_argument(
        "--measure", metavar="M,M…", default=",".join(_DEFAULT),
        help="what to measure. streams: whole runs; steps: the parts of a step, its bytes and counts; saturated: "
        "throughput of files; held: most listeners in real time without an underrun, which takes minutes; startup: a "
        "new process until its first sound; or all "
        f"(default: {','.join(_DEFAULT)})",
    )  # fmt: skip
    parser.add_argument("--device", default="auto", help="where to run: auto, cpu, cuda, cuda:1 … (default: auto)")
    parser.add_argument(
        "--dtype", choices=DTYPES, default="auto", help="data type of the language models (default: auto)"
    )
    parser.add_argument("--codec-dtype", choices=DTYPES, default="auto", help="data type of the codec (default: auto)")
    _add_sustained(parser)
    parser.add_argument("--out", metavar="FILE", type=Path, help="write all figures as JSON (default: nowhere)")
    parser.add_argument(
        "--plot", metavar="FILE", type=Path,
        help="draw a frame's time by part, and throughput, as PNG; needs streams and steps (default: nowhere)",
    )  # fmt: skip


def _add_sustained(parser: argparse.ArgumentParser) -> None:
    sustained = parser.add_argument_group("sustained listeners")
    sustained.add_argument(
        "--held-frames",
        metavar="N",
        type=whole_number(2),
        help="frames that each listener hears (default: as --frames)",
    )
    sustained.add_argument(
        "--first-audio",
        metavar="MS",
        type=number(0, above=True),
        default=500.0,
        help="time in which the first sound must come (default: 500)",
    )
    sustained.add_argument(
        "--held-share", metavar="PERCENT", type=float, default=99.0,
        help="share of streams that must have no underrun, at 95 %% confidence: 99 takes 299 streams without one, 95 "
        "takes 59 (default: 99)",
    )  # fmt: skip
    sustained.add_argument(
        "--held-start",
        metavar="N",
        type=whole_number(1),
        help="listeners to begin with (default: 64 on a GPU, 1 on a CPU)",
    )
    sustained.add_argument(
        "--held-most", metavar="N", type=whole_number(1), help="most listeners to try (default: four times the rows)"
    )


def run(args: argparse.Namespace) -> int:
    from sonant.bench.engine import offline
    from sonant.bench.engine.offline_table import picture, table
    from sonant.bench.report import plots
    from sonant.bench.report.results import check_places, write_json

    wanted = _measurements(args.measure)
    device = pick_device(args.device)
    streams = positive_numbers(args.streams or _STREAMS[device.type], "--streams", int)
    if not 50 <= args.held_share < 100:
        raise ConfigError(f"--held-share must be a percentage from 50 to below 100, not {args.held_share:g}")
    if args.plot:
        plots.need_matplotlib()
        if not {"streams", "steps"} <= wanted:
            raise ConfigError("--plot draws what streams and steps measure: add both to --measure")
    check_places(args.out, args.plot)
    folder = model_folder(args.model)
    given = {
        "codec": given_codec(args.codec),
        "kv_cache_dtype": args.kv_cache_dtype,
        "quantize": args.quantize,
    }
    config = EngineConfig(max_rows=max(streams), warm_rows=max(streams), **given)
    startup = _startup(args, folder, config) if "startup" in wanted else None
    engine = load(folder, device=args.device, dtype=args.dtype, codec_dtype=args.codec_dtype, config=config)
    with engine:
        freeze_what_is_alive()
        report = offline.run(engine, streams if "streams" in wanted else [], args.frames, on_level=_tell)
        if "saturated" in wanted:
            report.saturated = offline.saturate(engine, args.frames)
        if "held" in wanted:
            report.held = _find_sustained(args, engine, max(streams))
    report.startup = startup
    if "steps" in wanted:
        _break_down(engine, report, streams)
    print(table(report))
    if args.out:
        facts = {"model": str(folder), "quantize": args.quantize, "machine": machine_facts(("triton", "matplotlib"))}
        write_json(args.out, report.to_json() | facts, indent=1)
    if args.plot:
        plots.write_png(args.plot, picture(report))
    return 0


def _startup(args: argparse.Namespace, folder: Path, config: EngineConfig) -> Startup:
    """Call it before an engine is loaded here, which would leave no memory for another."""
    from sonant.bench.engine.startup import StartupJob, measure

    assert config.max_rows is not None
    types = args.device, args.dtype, args.codec_dtype
    eight_bits = config.kv_cache_dtype, config.quantize
    return measure(StartupJob(str(folder), *types, config.max_rows, config.codec, *eight_bits))


def _find_sustained(args: argparse.Namespace, engine: Engine, rows: int) -> SustainedListeners:
    from sonant.bench.client.capacity import Promise
    from sonant.bench.engine.sustained_listeners import find_sustained

    promise = Promise(ttfp_s=args.first_audio / 1e3, gap_s=0.0, share=args.held_share / 100, none_bad=True)
    return find_sustained(
        engine,
        args.held_frames or args.frames,
        promise,
        start=args.held_start or (64 if engine.device.type == "cuda" else 1),
        most=args.held_most or 4 * rows,
        on_level=_tell,
    )


def _break_down(engine: Engine, report: OfflineReport, streams: list[int]) -> None:
    from sonant.bench.engine.breakdown import break_down

    for count in streams:
        report.breakdowns.append(break_down(engine, count, report.frames, 1e9 * report.copy_gb_per_s))


def _tell(level: object) -> None:
    """Show progress on a terminal."""
    if sys.stderr.isatty():
        print(level, file=sys.stderr)


def _measurements(text: str) -> set[str]:
    names = set(MEASUREMENTS) if text == "all" else set(text.split(","))
    if unknown := sorted(names - set(MEASUREMENTS)):
        raise ConfigError(f"--measure has no {unknown[0]!r}; choose from {', '.join(MEASUREMENTS)} and all")
    return names
