"""`sonant bench`: the measurements, a subcommand each."""

from __future__ import annotations

from sonant.cli.bench import capacity, compare, kernels, offline, quality, serve
from sonant.cli.options import Commands, add_group

EPILOG = """\
examples:
  sonant bench serve --base-url http://localhost:8000 --concurrency 1,4,16   how a server holds up
  sonant bench capacity --base-url http://localhost:8000                     how many listeners it holds
  sonant bench quality --base-url http://localhost:8000 --asr whisper        whether it still says the words
  sonant bench compare before.json after.json                                whether a change made a difference
  sonant bench offline --model model                                         the engine alone, without a network
  sonant bench kernels                                                       its kernels against plain torch
"""


def add_parser(commands: Commands) -> None:
    summary = "measure: a server under load, its capacity and quality, two runs, the engine alone, its kernels"
    measurements = (serve, capacity, quality, compare, offline, kernels)
    add_group(commands, "bench", measurements, summary=summary, title="measurements", epilog=EPILOG)
