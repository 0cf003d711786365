"""`sonant serve`: the OpenAI speech API over one model."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import sonant
from sonant.cli.model_folder import model_folder
from sonant.cli.options import DTYPES, Commands, add_command, add_model, whole_number
from sonant.config import EngineConfig
from sonant.errors import ConfigError
from sonant.models.registry import describe

EXAMPLES = """
sonant serve --model model
sonant serve --model model --host 0.0.0.0 --port 8000 --api-key "$KEY" --device cuda
curl localhost:8000/v1/audio/speech -H 'content-type: application/json' -d '{"input": "Hello."}' -o hello.mp3
"""


def add_parser(commands: Commands) -> None:
    parser = add_command(commands, "serve", run, summary="answer OpenAI's speech API", examples=EXAMPLES)
    add_model(parser)
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine only)"
    )
    parser.add_argument(
        "--port", type=whole_number(0), default=8000, help="port to listen on; 0 picks one (default: 8000)"
    )
    parser.add_argument(
        "--api-key", metavar="KEY", action="append", default=[],
        help="a key that clients must send; may be given again for more (default: SONANT_API_KEYS, by commas)",
    )  # fmt: skip
    parser.add_argument("--max-rows", metavar="N", type=whole_number(1), help="requests at once (default: by device)")
    parser.add_argument(
        "--max-waiting", metavar="N", type=whole_number(1), default=256, help="requests that may queue (default: 256)"
    )
    parser.add_argument(
        "--max-first-audio",
        metavar="S",
        type=float,
        default=10.0,
        help="seconds a request may wait for its first sound before it is refused (default: 10)",
    )
    parser.add_argument(
        "--drain",
        metavar="S",
        type=float,
        default=30.0,
        help="seconds that requests may go on after SIGTERM (default: 30)",
    )
    parser.add_argument(
        "--voices", metavar="DIR", type=Path, help="keep uploaded voices there (default: uploading is off)"
    )
    parser.add_argument(
        "--consent", choices=("required", "asserted"), default="required",
        help="what an upload must show: a recorded consent, or a written statement (default: required)",
    )  # fmt: skip
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 … (default: auto)")
    parser.add_argument("--dtype", choices=DTYPES, default="auto", help="of the language models (default: auto)")
    parser.add_argument("--codec-dtype", choices=DTYPES, default="auto", help="of the codec (default: auto)")


def run(args: argparse.Namespace) -> int:
    try:
        import uvicorn

        from sonant.serving.app import create_app
        from sonant.serving.host import EngineHost
        from sonant.serving.options import ServeOptions
    except ModuleNotFoundError as e:
        raise ConfigError(f"serving needs {e.name}; install it with: pip install 'sonant[serve]'") from e
    folder = model_folder(args.model)
    keys = tuple(args.api_key) or tuple(k for k in os.environ.get("SONANT_API_KEYS", "").split(",") if k)
    options = ServeOptions(
        host=args.host,
        port=args.port,
        api_keys=keys,
        max_first_audio_s=args.max_first_audio,
        voices_folder=args.voices,
        consent=args.consent,
        drain_s=args.drain,
    )
    config = EngineConfig(max_rows=args.max_rows, max_waiting=args.max_waiting)

    def load() -> sonant.Engine:
        return sonant.load(folder, device=args.device, dtype=args.dtype, codec_dtype=args.codec_dtype, config=config)

    app = create_app(EngineHost(load), options, describe(folder), Path(folder).name)
    uvicorn.run(
        app, host=options.host, port=options.port, log_level="info", timeout_graceful_shutdown=int(options.drain_s) + 1
    )
    return 0
