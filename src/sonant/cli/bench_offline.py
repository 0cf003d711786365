"""`sonant bench offline`: how fast the engine is on this machine, without a network in between."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import sonant
from sonant.bench import offline
from sonant.cli.model_folder import model_folder
from sonant.cli.options import DTYPES, Commands, add_command, add_model, whole_number
from sonant.config import EngineConfig
from sonant.errors import ConfigError

EXAMPLES = """
sonant bench offline --model model --streams 1,4 --frames 25
sonant bench offline --model model --streams 1,16,64 --device cuda --out report.json
"""


def add_parser(commands: Commands) -> None:
    summary = "measure the engine itself: time per frame, first audio and gaps, by number of streams"
    parser = add_command(commands, "offline", run, summary=summary, examples=EXAMPLES)
    add_model(parser)
    parser.add_argument("--streams", metavar="N,N…", default="1,4", help="streams at once, by level (default: 1,4)")
    parser.add_argument(
        "--frames",
        metavar="N",
        type=whole_number(1),
        default=125,
        help="frames a request; 12.5 are a second (default: 125)",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 … (default: auto)")
    parser.add_argument("--dtype", choices=DTYPES, default="auto", help="of the language models (default: auto)")
    parser.add_argument("--codec-dtype", choices=DTYPES, default="auto", help="of the codec (default: auto)")
    parser.add_argument("--out", metavar="FILE", type=Path, help="write all figures there as JSON (default: nowhere)")


def run(args: argparse.Namespace) -> int:
    try:
        streams = [int(n) for n in args.streams.split(",")]
    except ValueError:
        raise ConfigError(f"--streams takes whole numbers with commas, not {args.streams!r}") from None
    config = EngineConfig(max_rows=max(streams))
    folder = model_folder(args.model)
    with sonant.load(
        folder, device=args.device, dtype=args.dtype, codec_dtype=args.codec_dtype, config=config
    ) as engine:
        report = offline.run(engine, streams, args.frames)
    print(offline.table(report))
    if args.out:
        args.out.write_text(json.dumps(report.to_json(), indent=1))
    return 0
