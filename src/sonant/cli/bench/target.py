"""Options that all load tests share: which server, what it is to say, and how the client works."""

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
from sonant.errors import ConfigError

if TYPE_CHECKING:  # they need the bench extra, and this module is loaded for every command
    from sonant.bench.client.load import Load
    from sonant.bench.client.sweep import OnProgress
    from sonant.bench.client.worker import LoadProgress

_STREAMS_A_PROCESS = 500


def add_target(parser: argparse.ArgumentParser) -> None:
    server = parser.add_argument_group("server")
    server.add_argument("--base-url", metavar="URL", required=True, help="where it is, with or without /v1")
    server.add_argument("--model", metavar="NAME", help="name in each request (default: the first of /v1/models)")
    server.add_argument("--voice", metavar="NAME", help="(default: none is sent)")
    server.add_argument("--api-key", metavar="KEY", help="(default: the environment variable SONANT_BENCH_KEY)")
    server.add_argument("--format", choices=FORMATS, default="pcm", help="of the sound (default: pcm)")
    server.add_argument("--no-stream", action="store_true", help="ask for whole files (default: streamed)")
    server.add_argument("--sse", action="store_true", help="ask for server-sent events (default: plain sound)")
    server.add_argument(
        "--sample-rate", metavar="HZ", type=whole_number(1), default=24_000,
        help="of PCM, where the server does not say (default: 24000)",
    )  # fmt: skip
    server.add_argument(
        "--extra-body", metavar="JSON", type=_json_object, default={},
        help="more fields of each request, such as '{\"max_frames\": 125}'; null takes one away",
    )  # fmt: skip
    server.add_argument(
        "--connect-first", action="store_true",
        help="open each connection before its clock starts (default: connecting counts)",
    )  # fmt: skip
    server.add_argument("--insecure", action="store_true", help="take any TLS certificate (default: verify)")


def add_prompts(parser: argparse.ArgumentParser) -> None:
    prompts = parser.add_argument_group("what it says")
    prompts.add_argument(
        "--language", metavar="L,L…", default="english", help=f"of {', '.join(LANGUAGES)} (default: english)"
    )
    prompts.add_argument(
        "--length", metavar="L,L…", default=",".join(LENGTHS), help="of short, medium, long (default: all)"
    )
    prompts.add_argument(
        "--prompts", metavar="FILE", type=Path, help="one text a line, or a seed-tts meta.lst (default: built in)"
    )
    prompts.add_argument(
        "--wordings", metavar="N", type=whole_number(1), default=1,
        help="of each text, numbered: a server that keeps what it has computed of a text has nothing of the others "
        "(default: 1, as it is)",
    )  # fmt: skip
    prompts.add_argument("--clone", metavar="FILE", type=Path, help="a clip of the voice to clone in each request")
    prompts.add_argument("--ref-text", metavar="TEXT", default="", help="what is said in --clone")


def add_client(parser: argparse.ArgumentParser) -> None:
    client = parser.add_argument_group("client")
    client.add_argument(
        "--warmups", metavar="N", type=whole_number(0), default=2, help="requests before each level, apart (default: 2)"
    )
    client.add_argument(
        "--timeout",
        metavar="S",
        type=number(0, above=True),
        default=300.0,
        help="seconds a request may take (default: 300)",
    )
    client.add_argument(
        "--processes", metavar="N", type=whole_number(1), help="of the client (default: one for 500 streams)"
    )
    client.add_argument(
        "--seed", metavar="N", type=whole_number(0), default=0, help="of random arrivals and --wordings (default: 0)"
    )
    client.add_argument("--quiet", action="store_true", help="no progress display (default: on a terminal)")


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
        raise ConfigError("--ref-text goes with --clone")
    if args.clone is not None:
        if not args.clone.is_file():
            raise ConfigError(f"--clone {args.clone} is not a file")
        reference = Reference(args.clone, args.ref_text)
        found = [replace(p, reference=reference) for p in found]
    return found


def check_requests(requests: int | None, listeners: Sequence[int]) -> None:
    """A listener without a request is none, and the level would be named after more than were there."""
    if requests is not None and requests < max(listeners):
        raise ConfigError(f"--requests {requests} is less than one for each of {max(listeners)} listeners")


def processes_of(args: argparse.Namespace, streams: int) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return args.processes or max(1, min(cores, 1 + streams // _STREAMS_A_PROCESS))


def client_facts(args: argparse.Namespace, processes: int) -> dict[str, Any]:
    """The machine and versions behind a result, and the command that made it."""
    from sonant.bench.client.worker import loop_factory

    facts = machine_facts(("httptools", "uvloop", "av"), secret=args.api_key)
    loop = "asyncio" if loop_factory() is None else "uvloop"
    return facts | {"processes": processes, "event_loop": loop}


def show_progress(line: ProgressLine) -> OnProgress:
    """What tells on that line how far a load is."""

    def show(load: Load, progress: LoadProgress) -> None:
        failed = f", {progress.failed} failed" if progress.failed else ""
        line.show(f"load {load.label}: {progress.done}/{load.requests} done{failed}, {progress.in_flight} in flight")

    return show


def need_bench_packages() -> None:
    """Call it before anything else: it gives a clear word instead of an import error in a child process."""
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
