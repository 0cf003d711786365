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
    Command("serve", "answer OpenAI's speech API", "sonant.cli.serve"),
    Command("voices", "list a model's voices and languages, without loading it", "sonant.cli.voices"),
    Command(
        "bench",
        "measure: a server under load, its capacity and quality, two runs, the engine alone, its kernels",
        "sonant.cli.bench",
    ),
    Command(
        "profile",
        "find waste: record steps of an engine, read traces, compare two, hold a budget",
        "sonant.cli.profile",
    ),
    Command("download", "fetch a published checkpoint, and check that it came whole", "sonant.cli.download"),
    Command("doctor", "show what Sonant will run on, and check a model without loading it", "sonant.cli.doctor"),
    Command(
        "random-model", "write a model of random weights: it babbles, at the speed of a real one",
        "sonant.cli.random_model",
    ),
)  # fmt: skip

EPILOG = """\
examples:
  sonant random-model model                        a model of random weights, to try things with: it babbles
  sonant say "Hello." --model model -o hello.wav   speak into a file
  sonant serve --model model                       answer OpenAI's speech API
  sonant voices --model model                      who can speak, and in which languages
  sonant bench offline --model model               how fast it is here; `bench serve` loads a server
  sonant profile run model                         where a step's time goes that makes no sound
  sonant download                                  names of models to fetch, for --model NAME
  sonant doctor                                    what this machine will run on

`sonant COMMAND --help` tells all options of a command. Exit codes: 0 done, 1 doctor found something broken,
2 an error that the message explains, 130 interrupted.
"""


class ShowVersion(argparse.Action):
    """Looks for the version only when it is asked for, which takes longer than all else that the parser does."""

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
    """Run one command and give its exit code. `argv` is without the program's name."""
    prepare_streams()
    debug = False
    try:
        with interrupt_waits():
            args = build_parser().parse_args(argv)  # imports the command, and torch with most of them
        debug = args.debug
        code: int = args.run(args)
        sys.stdout.flush()  # here, so that a reader who went away is noticed where we can answer
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
        print(f"sonant: no room to write {e.filename or 'what is printed'}", file=sys.stderr)
        return EXIT_ERROR


def _leave_stdout() -> None:
    """The interpreter flushes it once more at its end, and would complain there."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
