"""`sonant profile attach`: record a running server's steps, under whatever load it has."""

from __future__ import annotations

import argparse
import json
import os
from http.client import HTTPException, HTTPResponse, IncompleteRead
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from sonant.cli.options import whole_number
from sonant.cli.sound_file import OutputError
from sonant.errors import SonantError

KEY_VARIABLE = "SONANT_API_KEY"
EXAMPLES = """
sonant serve model --debug-profile on                                 the server must allow it
sonant profile attach http://localhost:8000 --steps 200 -o live.json.gz
sonant profile read live.json.gz
"""


class AttachError(SonantError):
    """The server gave no trace; the message says why."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="address of the server")
    parser.add_argument(
        "--steps", metavar="N", type=whole_number(1), default=100, help="steps to record (default: 100)"
    )
    parser.add_argument(
        "--timeout", metavar="S", type=whole_number(1), default=60, help="seconds to wait (default: 60)"
    )
    parser.add_argument(
        "--stacks", action="store_true", help="record Python stacks too, which slows the server (default: off)"
    )
    parser.add_argument(
        "--eager", action="store_true", help="record without CUDA graphs, which is far slower (default: off)"
    )
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"API key, if the server needs one (default: the environment variable {KEY_VARIABLE})",
    )
    parser.add_argument(
        "--out",
        "-o",
        metavar="FILE",
        type=Path,
        default=Path("trace.json.gz"),
        help="file for the trace (default: trace.json.gz)",
    )


def run(args: argparse.Namespace) -> int:
    body = {"steps": args.steps, "timeout_s": args.timeout, "stacks": args.stacks, "graphs": not args.eager}
    headers = {"content-type": "application/json"}
    key = args.api_key or os.environ.get(KEY_VARIABLE)
    if key:
        headers["authorization"] = f"Bearer {key}"
    try:
        request = Request(f"{args.url.rstrip('/')}/debug/profile", json.dumps(body).encode(), headers, method="POST")
        with urlopen(request, timeout=args.timeout + 180) as answer:
            steps = answer.headers.get("x-steps", "?")
            _save(answer, args.out)
    except HTTPError as e:
        raise AttachError(_why(args.url, e)) from e
    except (OSError, HTTPException, ValueError) as e:
        raise AttachError(f"no server answers at {args.url}: {getattr(e, 'reason', e)}") from e
    print(f"{args.out}: {steps} steps recorded; read them with: sonant profile read {args.out}")
    return 0


def _save(answer: HTTPResponse, out: Path) -> None:
    """Write the trace that the server sends; half a trace does not stay."""
    try:
        with out.open("wb") as file:
            try:
                while data := _next_of(answer):
                    file.write(data)
                file.flush()
            except BaseException:  # the server, the disk, or Ctrl-C
                if out.is_file():
                    out.unlink()
                raise
    except OSError as e:
        raise OutputError(f"cannot write {out}: {e.strerror}") from e


def _next_of(answer: HTTPResponse) -> bytes:
    try:
        data = answer.read(1 << 20)
        if not data and answer.length:
            raise IncompleteRead(data, answer.length)
    except (OSError, HTTPException) as e:
        raise AttachError(f"the server's trace broke off: {e}; record it again") from e
    return data


def _why(url: str, error: HTTPError) -> str:
    if error.code == 404:
        return f"{url} does not record steps: start it with sonant serve --debug-profile on"
    try:
        return str(json.loads(error.read())["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{url} answered {error.code} {error.reason}"
