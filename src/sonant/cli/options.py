"""Options that several commands share, and how a command is added."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable
from typing import TypeAlias

from sonant.models.registry import titles

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # what add_subparsers gives

DTYPES = ("auto", "float32", "bfloat16", "float16")


def add_command(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], int], *, summary: str, examples: str
) -> argparse.ArgumentParser:
    """A subcommand that `run` answers; `examples` are shown at the end of its help."""
    parser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog="examples:\n" + textwrap.indent(textwrap.dedent(examples).strip("\n"), "  "),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error (default: off)")
    parser.set_defaults(run=run)
    return parser


def model_help() -> str:
    return f"folder of a published checkpoint of {titles()} (default: the environment variable SONANT_MODEL)"


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="DIR", help=model_help())


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON for programs (default: off)")


def whole_number(least: int) -> Callable[[str], int]:
    """An argparse type: a whole number of at least `least`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, not {value}")
        return value

    return parse
