"""`sonant profile`: finds where the device's time makes no sound; one subcommand for each way to look."""

from __future__ import annotations

from sonant.cli.commands import Command

EXAMPLES = """
sonant profile run model --concurrency 4                   record our engine, and show what it wastes
sonant profile read trace.json.gz --html report.html       the same for a trace of any engine (torch.profiler, Nsight)
sonant profile diff before.json after.json                 whether a fix worked
sonant profile read trace.json --assert "fills=0,syncs=0"  for CI: exits with 1 if a step exceeds a limit
sonant profile attach http://localhost:8000 -o live.json.gz   record a server under load
"""

TITLE = "commands"
COMMANDS = (
    Command(
        "run",
        "record our engine in two traces, one for times and one for sources, and show what it wastes",
        "sonant.cli.profile.run",
    ),
    Command(
        "read",
        "read a trace of torch.profiler (JSON, gzip) or Nsight Systems (SQLite), and show what its engine wastes",
        "sonant.cli.profile.read",
    ),
    Command(
        "diff",
        "compare two traces or reports: what went down or up, and how certain that is",
        "sonant.cli.profile.diff",
    ),
    Command(
        "attach",
        "record steps of a running server that was started with --debug-profile on",
        "sonant.cli.profile.attach",
    ),
)
