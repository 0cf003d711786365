"""A piece of a run: runs are cut into pieces of a few minutes, each of which resumes from the state of the last one.

What the trainers' commands share: their options, where a piece begins, and what it says of itself at its end.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, TypeVar

import torch

from training.curves import Curves


class Run(Protocol):
    step_number: int
    minutes: float  # of all pieces so far


R = TypeVar("R", bound=Run)


def add_arguments(parser: argparse.ArgumentParser, *, resumes_from: str, minutes_of: str) -> None:
    parser.add_argument(
        "--state", type=Path, required=True, help="whole checkpoint: resumed from if there, then written"
    )
    parser.add_argument("--resume", type=Path, help=f"start from this {resumes_from} instead")
    parser.add_argument("--again", action="store_true", help="its weights, and the schedule from its beginning")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=9.0, help=f"of the clock, {minutes_of} included")
    parser.add_argument("--total-minutes", type=float, help="of all pieces together, instead of the config's")
    parser.add_argument("--steps", type=int, help="stop after so many steps of this piece")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")


def log_to_terminal() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")


def resume(
    run: R, load: Callable[[R, Path], None], options: argparse.Namespace, name: str, log: logging.Logger
) -> None:
    """Resume from `--resume`, or else from `--state` if it holds a checkpoint of that name; else the run is new."""
    source = options.resume or (options.state if any(options.state.glob(f"{name}-*.safetensors")) else None)
    if source is None:
        return
    load(run, source)
    run.minutes = 0.0 if options.again else run.minutes
    log.info("resumed %s at step %d, %.1f minutes", source, run.step_number, run.minutes)


def report(run: Run, curves: Curves, figures: Mapping[str, float], log: logging.Logger) -> None:
    """Report a piece's figures at its end, in the curves and in the log."""
    curves.add({"step": run.step_number, "minutes": round(run.minutes, 3), **figures})
    curves.draw()
    log.info("step %d, %.1f minutes in all: %s", run.step_number, run.minutes, dict(figures))
