"""Simulate replicas of an engine, from times measured on an H200, and print how many listeners they can hold.

Listeners are held if none hears a gap and 99 of 100 get their first sound in time.
"""

from __future__ import annotations

import argparse

from sonant.bench.scale.engine_times import H200_1_7B
from sonant.bench.scale.fleet import Fleet, Load, Outcome
from sonant.text_table import grid

_FRAMES = 125
_SECONDS = 30.0


def held(replicas: int, first_s: float, *, most: int) -> tuple[int, Outcome | None]:
    """The most listeners without a gap and with 99 of 100 first sounds in time, by bisection, and their outcome."""
    low, high, felt = 0, most, None
    while high - low > max(8, high // 32):
        middle = (low + high) // 2
        outcome = Fleet(H200_1_7B, replicas).run(Load(listeners=middle, frames=_FRAMES, seconds=_SECONDS))
        if outcome.gap_share == 0 and outcome.first_quantile_s(0.99) <= first_s:
            low, felt = middle, outcome
        else:
            high = middle
    return low, felt


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m sonant.bench.scale", description=__doc__)
    parser.add_argument("--replicas", default="1,3", help="with commas (default: 1,3)")
    parser.add_argument("--first-audio", type=float, default=0.5, help="seconds that 99 of 100 may wait (default: 0.5)")
    args = parser.parse_args()
    rows = []
    for count in map(int, args.replicas.split(",")):
        most, felt = held(count, args.first_audio, most=4096 * count)
        first = "" if felt is None else [f"{1e3 * felt.first_quantile_s(share):.0f}" for share in (0.5, 0.99)]
        rows.append([str(count), str(most), *(first or ["", ""])])
    print("a talker of 1.7B on H200s, streams of 10 s, from the steps in docs/bench.md")
    print(grid([["replicas", "listeners held", "first sound p50 ms", "p99 ms"], *rows]))


if __name__ == "__main__":
    main()
