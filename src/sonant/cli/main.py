"""The `sonant` command: finds the subcommand, and turns errors meant for people into one line."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence

from sonant.cli import bench, doctor, profile, random_model, say, serve, voices
from sonant.cli.exit_codes import EXIT_BROKEN_PIPE, EXIT_ERROR, EXIT_INTERRUPTED
from sonant.cli.machine import version_of
from sonant.errors import SonantError

EPILOG = """\
examples:
  sonant random-model model                        a model of random weights, to try things with: it babbles
  sonant say "Hello." --model model -o hello.wav   speak into a file
  sonant serve --model model                       answer OpenAI's speech API
  sonant voices --model model                      who can speak, and in which languages
  sonant bench offline --model model               how fast it is here; `bench serve` loads a server
  sonant profile run model                         where a step's time goes that makes no sound
  sonant doctor                                    what this machine will run on

`sonant COMMAND --help` tells all options of a command. Exit codes: 0 done, 1 doctor found something broken,
2 an error that the message explains, 130 interrupted.
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sonant",
        description="Text to speech on your own machine.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version=f"sonant {version_of('sonant') or 'from its source, not installed'}"
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (say, serve, voices, bench, profile, doctor, random_model):
        command.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and give its exit code. `argv` is without the program's name."""
    args = build_parser().parse_args(argv)
    try:
        code: int = args.run(args)
        sys.stdout.flush()  # here, so that a reader who went away is noticed where we can answer
        return code
    except SonantError as e:
        if args.debug:
            traceback.print_exc()
        print(f"sonant: {e}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        print("sonant: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes stdout once more at its end, and would complain there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE


if __name__ == "__main__":
    sys.exit(main())
