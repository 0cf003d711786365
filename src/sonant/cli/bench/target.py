"""Options that all load tests share: which server, what it speaks, and how the client works."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sonant.bench.client.fetch import fetch
from sonant.bench.client.prompts import LANGUAGES, LENGTHS, Prompt, Reference, built_in, from_file, worded
from sonant.bench.client.target import FORMATS, Target
from sonant.cli.bench.facts import machine_facts
from sonant.cli.options import number, whole_number
from sonant.cli.progress_line import ProgressLine
from sonant.cores import usable_cores
from sonant.errors import ConfigError

if TYPE_CHECKING:  # they need the bench extra, and this module is imported for each load test's help too
    from sonant.bench.client.load import Load
    from sonant.bench.client.sweep import OnProgress
    from sonant.bench.client.worker import LoadProgress

_STREAMS_A_PROCESS = 500


def add_target(parser: argparse.ArgumentParser) -> None:
    server = parser.add_argument_group("server")
    server.add_argument("--base-url", metavar="URL", required=True, help="address of the server, with or without /v1")
    server.add_argument("--model", metavar="NAME", help="model to ask for (default: the first of /v1/models)")
    server.add_argument("--voice", metavar="NAME", help="voice to ask for (default: none is sent)")
    server.add_argument(
        "--api-key", metavar="KEY", help="API key to send (default: the environment variable SONANT_BENCH_KEY)"
    )
    server.add_argument("--format", choices=FORMATS, default="pcm", help="format of the sound (default: pcm)")
    server.add_argument("--no-stream", action="store_true", help="ask for whole files (default: streamed)")
    server.add_argument("--sse", action="store_true", help="ask for server-sent events (default: plain sound)")
    server.add_argument(
        "--sample-rate", metavar="HZ", type=whole_number(1), default=24_000,
        help="sample rate of PCM, if the server does not state it (default: 24000)",
    )  # fmt: skip
    server.add_argument(
        "--extra-body", metavar="JSON", type=_json_object, default={},
        help="more fields for each request, such as '{\"max_frames\": 125}'; null removes one",
    )  # fmt: skip
    server.add_argument(
        "--connect-first", action="store_true",
        help="open each connection before its request is timed (default: connecting counts)",
    )  # fmt: skip
    server.add_argument("--insecure", action="store_true", help="accept any TLS certificate (default: verify)")


def add_prompts(parser: argparse.ArgumentParser) -> None:
    prompts = parser.add_argument_group("texts")
    prompts.add_argument(
        "--language",
        metavar="L,L…",
        default="english",
        help=f"languages of the texts: {', '.join(LANGUAGES)} (default: english)",
    )
    prompts.add_argument(
        "--length",
        metavar="L,L…",
        default=",".join(LENGTHS),
        help="lengths of the texts: short, medium, long (default: all)",
    )
    prompts.add_argument(
        "--prompts",
        metavar="FILE",
        type=Path,
        help="file with a text on each line, or a seed-tts meta.lst (default: built-in texts)",
    )
    prompts.add_argument(
        "--wordings", metavar="N", type=whole_number(1), default=1,
        help="variants of each text, which begin with different numbers, so that a server cannot reuse what it has "
        "computed for another (default: 1, the text as it is)",
    )  # fmt: skip
    prompts.add_argument("--clone", metavar="FILE", type=Path, help="clip of the voice to clone in each request")
    prompts.add_argument("--ref-text", metavar="TEXT", default="", help="the words of the --clone clip")


def add_client(parser: argparse.ArgumentParser) -> None:
    client = parser.add_argument_group("client")
    client.add_argument(
        "--warmups",
        metavar="N",
        type=whole_number(0),
        default=2,
        help="requests before each level that do not count (default: 2)",
    )
    client.add_argument(
        "--timeout",
        metavar="S",
        type=number(0, above=True),
        default=300.0,
        help="seconds a request may take (default: 300)",
    )
    client.add_argument(
        "--processes",
        metavar="N",
        type=whole_number(1),
        help="processes of the client (default: one for every 500 streams)",
    )
    client.add_argument(
        "--seed",
        metavar="N",
        type=whole_number(0),
        default=0,
        help="seed of random arrivals and --wordings (default: 0)",
    )
    client.add_argument("--quiet", action="store_true", help="show no progress (default: shown on a terminal)")


def target_of(args: argparse.Namespace) -> Target:
    target = Target(
        base_url=args.base_url,
        model=args.model or "tts-1",
        voice=args.voice,
        api_key=args.api_key or os.environ.get("SONANT_BENCH_KEY"),
        response_format=args.format,
        stream=not args.no_stream,
        sse=args.sse,
        sample_rate=args.sample_rate,
        extra_body=args.extra_body,
        connect_first=args.connect_first,
        verify_tls=not args.insecure,
    )
    first = None if args.model else _first_model(target)
    return target if first is None else replace(target, model=first)


def prompts_of(args: argparse.Namespace) -> list[Prompt]:
    languages = args.language.split(",")
    if args.prompts is not None:
        found = from_file(args.prompts, languages[0])
    else:
        found = built_in(languages, args.length.split(","))
    found = worded(found, args.wordings, args.seed)
    if args.ref_text and args.clone is None:
        raise ConfigError("--ref-text needs --clone")
    if args.clone is not None:
        if not args.clone.is_file():
            raise ConfigError(f"--clone {args.clone} is not a file")
        reference = Reference(args.clone, args.ref_text)
        found = [replace(p, reference=reference) for p in found]
    return found


def check_requests(requests: int | None, listeners: Sequence[int]) -> None:
    """Refuse fewer requests than listeners: the level would be named after more listeners than took part."""
    if requests is not None and requests < max(listeners):
        raise ConfigError(f"--requests {requests} is less than one for each of {max(listeners)} listeners")


def processes_of(args: argparse.Namespace, streams: int) -> int:
    return args.processes or max(1, min(usable_cores(), 1 + streams // _STREAMS_A_PROCESS))


def client_facts(args: argparse.Namespace, processes: int) -> dict[str, Any]:
    """The machine and versions behind a result, and the command that made it."""
    from sonant.bench.client.worker import loop_factory

    facts = machine_facts(("httptools", "uvloop", "av"), secret=args.api_key)
    loop = "asyncio" if loop_factory() is None else "uvloop"
    return facts | {"processes": processes, "event_loop": loop}


def show_progress(line: ProgressLine) -> OnProgress:
    """A callback that shows on this line how far a load is."""

    def show(load: Load, progress: LoadProgress) -> None:
        failed = f", {progress.failed} failed" if progress.failed else ""
        line.show(f"load {load.label}: {progress.done}/{load.requests} done{failed}, {progress.in_flight} in flight")

    return show


def need_bench_packages() -> None:
    """Call it before anything else: its error is clear, unlike an import error in a child process."""
    try:
        import httptools  # noqa: F401
        import prometheus_client  # noqa: F401
    except ModuleNotFoundError as e:
        raise ConfigError(f"load tests need {e.name}; install it with: pip install 'sonant[bench]'") from e


def _first_model(target: Target) -> str | None:
    page = fetch(target, "/v1/models")
    try:
        return None if page is None else str(json.loads(page)["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        return None


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(f"not JSON: {e}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    return value
