"""`sonant profile`: where the device's time goes that makes no sound, a subcommand each."""

from __future__ import annotations

from sonant.cli.options import Commands, add_group
from sonant.cli.profile import attach, diff, read, run

EPILOG = """\
examples:
  sonant profile run model --concurrency 4                   record our engine, and say what it wastes
  sonant profile read trace.json.gz --html report.html       the same for a trace of any engine (torch.profiler, Nsight)
  sonant profile diff before.json after.json                 whether a fix worked
  sonant profile read trace.json --assert "fills=0,syncs=0"  for CI: exits with 1 when a step costs more than that
  sonant profile attach http://localhost:8000 -o live.json.gz   record a server under load
"""


def add_parser(commands: Commands) -> None:
    summary = "find waste: record steps of an engine, read traces, compare two, hold a budget"
    add_group(commands, "profile", (run, read, diff, attach), summary=summary, title="commands", epilog=EPILOG)
