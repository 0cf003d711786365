"""Trains talker and predictor in pieces of a few minutes; each piece resumes where the last one stopped.

    python -m training.talker.train --codes runs/codes --codec runs/speech_tokenizer \\
        --state /tmp/talker --out runs/talker --minutes 9

`--state` is for the same machine and resumes exactly; `--out` gets what goes home: a compact checkpoint, the loss
curves and a WAV in which every shipped voice speaks freely, through the engine.
"""

from __future__ import annotations

import argparse
import logging
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training import piece, settings
from training.curves import Curves
from training.lexicon import SHIPPED as SHIPPED_LEXICON
from training.talker import checkpoint
from training.talker.batches import Batches, allow_any_shape
from training.talker.config import TalkerTraining
from training.talker.lessons import Lessons
from training.talker.listen import listen
from training.talker.trainer import Trainer

LOG_STEPS = 20
VALIDATE_STEPS = 500
SAVING_S = 15.0  # kept back from the time limit to save and validate
LISTENING_S = 45.0  # and to speak

DRAWN = ("first", "rest", "gradient", "rate", "held_out_first", "held_out_rest", "held_out_stop", "held_out_hits")
log = logging.getLogger("talker")


def grown(batches: Batches, more: Future[Batches | None]) -> Batches:
    """Return `batches`, or more if more codes have come. An error in those is no reason to lose what was learnt."""
    if error := more.exception():
        log.warning("going on without more codes: %s", error)
        return batches
    found = more.result() or batches
    log.info("%d steps an epoch from now on", found.per_epoch)
    return found


def train(
    trainer: Trainer,
    lessons: Lessons,
    curves: Curves,
    deadline: float,
    most_steps: int | None,
    more: Future[Batches | None] | None = None,
) -> None:
    began, first = time.time(), trainer.step_number
    minutes_before, total = trainer.minutes, trainer.config.schedule.total_minutes
    sums: dict[str, Tensor] = {}
    logged, logged_at, batches = first, time.time(), lessons.training
    while time.time() < deadline and (most_steps is None or trainer.step_number - first < most_steps):
        trainer.minutes = minutes_before + (time.time() - began) / 60
        try:
            losses = trainer.step(batches, trainer.minutes / total)
        except RuntimeError as error:  # of the compiler; any other error comes again without it
            if not trainer.compiled:
                raise
            trainer.uncompile(f"{type(error).__name__}: {str(error)[:500]}")
            continue
        for name, value in losses.items():
            sums[name] = sums.get(name, 0.0) + value
        if trainer.step_number % LOG_STEPS == 0:
            steps = trainer.step_number - logged  # a piece that resumes between two lines of the log has fewer at first
            row = {name: round(v.item() / steps, 5) for name, v in sums.items()}
            if trainer.step_number - first >= LOG_STEPS and not np.isfinite(row["first"] + row["rest"]):
                raise FloatingPointError(f"step {trainer.step_number}: {row}; resume with a lower rate")
            pace = steps / (time.time() - logged_at)
            row |= {"step": trainer.step_number, "minutes": round(trainer.minutes, 3), "steps_per_s": round(pace, 2)}
            if trainer.step_number % VALIDATE_STEPS == 0:
                row |= trainer.validate(lessons.held)
            curves.add(row)
            if trainer.step_number % (10 * LOG_STEPS) == 0 or trainer.step_number - first <= 2 * LOG_STEPS:
                log.info("%s", row)
            if more is not None and more.done():
                batches, more = grown(batches, more), None
            sums, logged, logged_at = {}, trainer.step_number, time.time()
    trainer.minutes = minutes_before + (time.time() - began) / 60


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=settings.CONFIGS / "talker.toml")
    parser.add_argument("--codes", type=Path, required=True, help="what training.encode wrote")
    parser.add_argument("--more-codes", type=Path, help="learnt as well, as soon as there is such a folder")
    parser.add_argument("--codec", type=Path, required=True, help="the exported speech_tokenizer that made them")
    piece.add_arguments(
        parser, resumes_from="checkpoint (whole or compact) or voice", minutes_of="loading, saving and speaking"
    )
    parser.add_argument("--lexicon", type=Path, default=SHIPPED_LEXICON, help="default: the one that ships")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes that lay out prompts")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--listen", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    deadline = time.time() + 60 * options.minutes - SAVING_S - (LISTENING_S if options.listen else 0)
    piece.log_to_terminal()
    torch.set_float32_matmul_precision("high")
    allow_any_shape()

    config = settings.read(options.config, TalkerTraining)
    if options.total_minutes:
        config = replace(config, schedule=replace(config.schedule, total_minutes=options.total_minutes))
    device = torch.device(options.device)
    lessons = Lessons(options.codes, options.codec, config, device, options.workers, options.lexicon)
    trainer = Trainer(config, lessons.model, device, compiled=options.compile)
    piece.resume(trainer, checkpoint.load, options, checkpoint.NAME, log)
    size = sum(p.numel() for p in trainer.talker.parameters())
    log.info("%.2f M parameters, %d steps an epoch", size / 1e6, lessons.training.per_epoch)

    curves = Curves(options.out, DRAWN)
    beside = ThreadPoolExecutor(1)
    more = beside.submit(lessons.more, options.more_codes) if options.more_codes else None
    try:
        train(trainer, lessons, curves, deadline, options.steps, more)
    finally:
        lessons.over.set()
    checkpoint.save(trainer, options.state, compact=False)
    checkpoint.save(trainer, options.out, compact=True)
    figures = trainer.validate(lessons.held)
    if options.listen:
        figures |= listen(trainer.averaged, config, options.codec, options.out / "samples.wav", lexicon=options.lexicon)
    piece.report(trainer, curves, figures, log)


if __name__ == "__main__":
    main()
