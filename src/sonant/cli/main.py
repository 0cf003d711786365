"""The `sonant` command: finds the subcommand, and turns errors meant for people into one line."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import traceback
from collections.abc import Sequence

from sonant.cli.commands import Command, CommandParser, add_commands
from sonant.cli.interrupt import INTERRUPTED, interrupt_waits
from sonant.cli.streams import prepare_streams
from sonant.errors import SonantError
from sonant.exit_codes import EXIT_BROKEN_PIPE, EXIT_ERROR, EXIT_INTERRUPTED

COMMANDS = (
    Command("say", "speak a text into a file", "sonant.cli.say"),
    Command("serve", "serve OpenAI's speech API over HTTP", "sonant.cli.serve"),
    Command("voices", "list a model's voices and languages, without loading it", "sonant.cli.voices"),
    Command(
        "bench",
        "measure a server under load, its capacity or quality, the engine alone or its kernels; compare two runs",
        "sonant.cli.bench",
    ),
    Command(
        "profile",
        "find wasted time: record an engine's steps, read and compare traces, check them against a budget",
        "sonant.cli.profile",
    ),
    Command("download", "download a published checkpoint, and check that it is complete", "sonant.cli.download"),
    Command("doctor", "show what Sonant will run on, and check a model without loading it", "sonant.cli.doctor"),
    Command(
        "random-model", "write a model of random weights, which babbles at the speed of a real one",
        "sonant.cli.random_model",
    ),
)  # fmt: skip

EPILOG = """\
examples:
  sonant random-model model                        a model of random weights for trials, which babbles
  sonant say "Hello." --model model -o hello.wav   speak into a file
  sonant serve --model model                       serve OpenAI's speech API over HTTP
  sonant voices --model model                      who can speak, and in which languages
  sonant bench offline --model model               how fast it is here; `bench serve` tests a server
  sonant profile run model                         which part of a step's time is wasted
  sonant download                                  names of models to download, for --model NAME
  sonant doctor                                    what this machine will run on

`sonant COMMAND --help` lists all options of a command. Exit codes: 0 success, 1 a check failed (in doctor, bench or
profile), 2 an error that the message explains, 130 interrupted.
"""


class ShowVersion(argparse.Action):
    """Looks up the version only when it is asked for, since that takes longer than all else that the parser does."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from sonant.cli.package_version import version_of

        print(f"sonant {version_of('sonant') or 'from its source, not installed'}")
        parser.exit()


def build_parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="sonant", description="Text to speech on your own machine.", epilog=EPILOG)
    parser.add_argument("--version", action=ShowVersion, nargs=0, help="show program's version number and exit")
    add_commands(parser, COMMANDS, title="commands", metavar="COMMAND")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. `argv` is without the program's name."""
    prepare_streams()
    debug = False
    try:
        with interrupt_waits():
            args = build_parser().parse_args(argv)  # imports the command's module, and with most commands torch
        debug = args.debug
        code: int = args.run(args)
        sys.stdout.flush()  # here, so that a closed pipe is noticed where it is handled
        return code
    except SonantError as e:
        if debug:
            traceback.print_exc()
        print(f"sonant: {e}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _leave_stdout()
        return EXIT_BROKEN_PIPE
    except OSError as e:
        if e.errno != errno.ENOSPC:
            raise
        _leave_stdout()
        print(f"sonant: no space left to write {e.filename or 'the output'}", file=sys.stderr)
        return EXIT_ERROR


def _leave_stdout() -> None:
    """Redirect it to /dev/null: the interpreter flushes it once more at exit, and would complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
