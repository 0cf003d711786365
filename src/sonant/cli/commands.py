"""Commands by name: what each is for is known at once, its module is imported when its arguments are parsed.

So `sonant --help` does not import torch. A command's module has `EXAMPLES`, and either `add_arguments(parser)` and
`run(args)`, or `COMMANDS` of its own under a `TITLE`.
"""

from __future__ import annotations

import argparse
import importlib
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Command:
    name: str
    summary: str
    module: str


class CommandParser(argparse.ArgumentParser):
    """Adds its options when it parses for the first time."""

    def __init__(self, *, module: str | None = None, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)
        self._module = module

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        module, self._module = self._module, None
        if module is not None:
            self._fill(module)
        return super().parse_known_args(args, namespace)

    def _fill(self, name: str) -> None:
        module = importlib.import_module(name)
        self.epilog = "examples:\n" + textwrap.indent(textwrap.dedent(module.EXAMPLES).strip("\n"), "  ")
        if hasattr(module, "COMMANDS"):
            add_commands(self, module.COMMANDS, title=module.TITLE, metavar="WHAT")
            return
        self.add_argument("--debug", action="store_true", help="show the traceback of an error (default: off)")
        self.set_defaults(run=module.run)
        module.add_arguments(self)


def add_commands(parser: CommandParser, commands: Iterable[Command], *, title: str, metavar: str) -> None:
    group = parser.add_subparsers(title=title, metavar=metavar, required=True)
    for command in commands:
        description = command.summary[0].upper() + command.summary[1:] + "."
        group.add_parser(command.name, module=command.module, help=command.summary, description=description)
