"""`sonant profile run`: record our own engine under load, and analyze the recording at once."""

from __future__ import annotations

import argparse
from pathlib import Path

from sonant import load
from sonant.cli.model_folder import given_codec, given_once, model_folder
from sonant.cli.options import (
    DTYPES,
    add_codec,
    add_gpu_weights,
    add_kv_cache_dtype,
    add_model,
    add_quantize,
    whole_number,
)
from sonant.cli.profile.output import add_analysis, add_budget, add_output, show
from sonant.cli.sound_file import OutputError
from sonant.config import EngineConfig
from sonant.profiling.capture import record_traces

EXAMPLES = """
sonant profile run model
sonant profile run model --concurrency 16 --device cuda --html report.html
sonant profile run model --assert "fills=0,syncs=0,driver_allocations=0"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="MODEL", nargs="?", help="the same as --model")
    add_model(parser)
    add_codec(parser)
    add_gpu_weights(parser)
    add_kv_cache_dtype(parser)
    add_quantize(parser)
    parser.add_argument(
        "--concurrency", metavar="N", type=whole_number(1), default=4, help="streams at once (default: 4)"
    )
    parser.add_argument(
        "--frames",
        metavar="N",
        type=whole_number(1),
        default=125,
        help="frames of a stream, which then begins anew (default: 125)",
    )
    parser.add_argument(
        "--steps", metavar="N", type=whole_number(8), default=100, help="steps to record (default: 100)"
    )
    parser.add_argument(
        "--mapping-steps", metavar="N", type=whole_number(1), default=6,
        help="steps to record with Python stacks, which is slow (default: 6)",
    )  # fmt: skip
    parser.add_argument("--device", default="auto", help="where to run: auto, cpu, cuda, cuda:1 … (default: auto)")
    parser.add_argument(
        "--dtype", choices=DTYPES, default="auto", help="data type of the language models (default: auto)"
    )
    parser.add_argument("--codec-dtype", choices=DTYPES, default="auto", help="data type of the codec (default: auto)")
    parser.add_argument(
        "--out",
        "-o",
        metavar="DIR",
        type=Path,
        default=Path("profile"),
        help="folder for the traces (default: profile)",
    )
    add_analysis(parser)
    add_output(parser)
    add_budget(parser)


def run(args: argparse.Namespace) -> int:
    folder = model_folder(given_once(args.folder, args.model))
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise OutputError(f"cannot write {args.out}: {e.strerror}") from e
    rows = args.concurrency
    given = {
        "codec": given_codec(args.codec),
        "gpu_weights": args.gpu_weights,
        "kv_cache_dtype": args.kv_cache_dtype,
        "quantize": args.quantize,
    }
    config = EngineConfig(max_rows=rows, warm_rows=rows, **given)
    types = {"dtype": args.dtype, "codec_dtype": args.codec_dtype}
    with load(folder, device=args.device, config=config, **types) as engine:
        traces = record_traces(
            engine, args.out, concurrency=args.concurrency, frames=args.frames, steps=args.steps,
            mapping_steps=args.mapping_steps,
        )  # fmt: skip
    return show(args, traces.timing, traces.mapping)
