"""`sonant bench`: one subcommand for each measurement."""

from __future__ import annotations

from sonant.cli.commands import Command

EXAMPLES = """
sonant bench serve --base-url http://localhost:8000 --concurrency 1,4,16   a server under load
sonant bench capacity --base-url http://localhost:8000                     how many listeners it can serve
sonant bench quality --base-url http://localhost:8000 --asr whisper        whether its speech is still right
sonant bench compare before.json after.json                                whether a change made a difference
sonant bench offline --model model                                         the engine alone, without a network
sonant bench kernels                                                       its kernels against plain torch
"""

TITLE = "measurements"
COMMANDS = (
    Command(
        "serve",
        "put a speech server under load: first sound, real-time factor and gaps by number of listeners",
        "sonant.cli.bench.serve",
    ),
    Command(
        "capacity",
        "find how many listeners a server can serve without gaps and with the first sound in time",
        "sonant.cli.bench.capacity",
    ),
    Command(
        "quality",
        "judge a server's speech under load: words, naturalness, voice, length",
        "sonant.cli.bench.quality",
    ),
    Command(
        "compare",
        "compare two results of `bench serve`; exits with 1 on a regression",
        "sonant.cli.bench.compare",
    ),
    Command(
        "offline",
        "measure the engine alone: time by part, first sound, sustained listeners, throughput, start-up",
        "sonant.cli.bench.offline",
    ),
    Command(
        "kernels",
        "measure every kernel against plain torch at the models' shapes: µs, GB/s, share of the floor",
        "sonant.cli.bench.kernels",
    ),
)
