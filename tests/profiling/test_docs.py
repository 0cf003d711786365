"""The commands in docs/profiling.md exist, with the options shown there, and its lists are those of the program."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from sonant.cli.main import build_parser
from sonant.profiling.metrics import MEANING
from sonant.profiling.rules import RULES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "profiling.md").read_text(encoding="utf-8")


def test_commands_are_understood() -> None:
    lines = "".join(re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)).splitlines()
    assert len(lines) >= 15
    for line in lines:
        program, *args = shlex.split(line)
        if program == "sonant":
            build_parser().parse_args(args)
        else:
            assert program == "python" and (ROOT / args[0]).exists()


def test_every_rule_and_figure_is_told() -> None:
    told = set(re.findall(r"`(\w+)`", PAGE))
    assert {rule.__name__ for rule in RULES} <= told
    assert set(MEANING) <= told
