"""Trains the codec in pieces of a few minutes; each piece resumes where the last one stopped.

    python -m training.codec.train --corpus /tmp/corpus --state /tmp/codec --out runs/codec --minutes 9

`--state` is for the same machine and resumes exactly; `--out` gets what goes home: a compact checkpoint, the loss
curves and samples of clips that were kept out of training (original, then reconstruction). When encoder and codebooks
stop learning, `frozen` there gets a checkpoint: its codes are final, so a talker can learn them beside the rest.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training import piece, settings
from training.clip import SAMPLE_RATE
from training.codec import checkpoint
from training.codec.config import CodecTraining
from training.codec.data import Crops
from training.codec.losses import SpectralLoss
from training.codec.trainer import Trainer
from training.curves import Curves
from training.graphed import own_stream
from training.shards import Corpus, Entry
from training.wav import write_wav

LOG_STEPS = 50
SAVING_S = 12.0  # kept back from the time limit to save
HELD_OUT = 1  # clips of each speaker
FROZEN = "frozen"
DRAWN = ("mel", "stft", "commitment", "naming", "judge", "adversarial", "features")
log = logging.getLogger("codec")


def hold_out(corpus: Corpus) -> tuple[Corpus, list[Entry]]:
    """The last clips of every speaker are for listening, the others for training."""
    by_speaker: dict[str, list[Entry]] = {}
    for entry in corpus.entries:
        by_speaker.setdefault(entry.speaker, []).append(entry)
    held = [e for entries in by_speaker.values() for e in entries[1:][-HELD_OUT:]]
    starts = {e.start for e in held}
    kept = [e for e in corpus.entries if e.start not in starts]
    return Corpus(kept, corpus.samples, corpus.labels), held


def listen(trainer: Trainer, corpus: Corpus, held: list[Entry], out: Path) -> dict[str, float]:
    """Reconstruct the held-out clips with the averaged weights: a WAV to hear, and the figures that matter.

    Gradients stay on, though they are not used: only then does Sonant run the same ops as in training.
    """
    loss, pieces, mels = SpectralLoss(trainer.device), [], []
    gap = np.zeros(SAMPLE_RATE // 3, np.int16)
    with trainer.averaged_weights() as codec:
        codec.eval()
        for entry in held:
            original = corpus.clip(entry)
            samples = (torch.from_numpy(original).to(trainer.device).float() / 32768)[None]
            labels = torch.from_numpy(corpus.labels_of(entry)).to(trainer.device)[None]
            made = codec.reconstruct(samples, labels).detach()
            mels.append(loss(made, samples)[0].item())
            pieces += [original, gap, (made[0].cpu() * 32767).round().to(torch.int16).numpy(), gap]
        codec.train()
    write_wav(out, np.concatenate(pieces), SAMPLE_RATE)
    return {"held_out_mel": float(np.mean(mels)), "codes_in_use": _in_use(trainer)}


def _in_use(trainer: Trainer) -> float:
    """Mean perplexity of the codebooks but the first, which is given, as a share of their size."""
    shares = []
    for codebook in trainer.codec.quantizer.chains[1].codebooks():
        p = codebook.cluster_usage / codebook.cluster_usage.sum()
        shares.append(torch.special.entr(p).sum().exp() / len(p))
    return torch.stack(shares).mean().item()


def save_frozen(trainer: Trainer, out: Path) -> None:
    """Write it whole or not at all, since others wait for it."""
    part = out / f"{FROZEN}.part"
    checkpoint.save(trainer, part, compact=True)
    if (out / FROZEN).exists():
        shutil.rmtree(out / FROZEN)
    part.rename(out / FROZEN)


def train(trainer: Trainer, crops: Crops, curves: Curves, out: Path, deadline: float, most_steps: int | None) -> None:
    frozen = trainer.frozen
    began, first = time.time(), trainer.step_number
    minutes_before, total = trainer.minutes, trainer.config.schedule.total_minutes
    sums: dict[str, Tensor] = {}
    counts: dict[str, int] = {}
    logged_at = time.time()
    while time.time() < deadline and (most_steps is None or trainer.step_number - first < most_steps):
        trainer.minutes = minutes_before + (time.time() - began) / 60
        try:
            losses = trainer.step(crops, trainer.minutes / total)
        except RuntimeError as error:  # of a failed capture; any other error comes again without graphs
            if not trainer.simplify(f"{type(error).__name__}: {str(error)[:500]}"):
                raise
            continue
        for name, value in losses.items():
            sums[name] = sums.get(name, 0.0) + value
            counts[name] = counts.get(name, 0) + 1
        if trainer.frozen and not frozen:
            frozen = True
            save_frozen(trainer, out)
            log.info("step %d: codes are final from here on", trainer.step_number)
        if trainer.step_number % LOG_STEPS == 0:
            row = {name: round((v / counts[name]).item(), 4) for name, v in sums.items()}
            if not np.isfinite(row["mel"]):
                raise FloatingPointError(
                    f"step {trainer.step_number}: the loss is {row['mel']}; resume with a lower rate"
                )
            pace = LOG_STEPS / (time.time() - logged_at)
            row |= {
                "step": trainer.step_number,
                "minutes": round(trainer.minutes, 3),
                "steps_per_s": round(pace, 2),
            }
            curves.add(row)
            if trainer.step_number % (10 * LOG_STEPS) == 0 or trainer.step_number - first <= 4 * LOG_STEPS:
                log.info("%s", row)
            sums, counts, logged_at = {}, {}, time.time()
    trainer.minutes = minutes_before + (time.time() - began) / 60


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=settings.CONFIGS / "codec.toml")
    parser.add_argument("--corpus", type=Path, required=True)
    piece.add_arguments(parser, resumes_from="checkpoint (whole or compact)", minutes_of="loading and saving")
    parser.add_argument(
        "--frozen", action="store_true", help="encoder and codebooks stay as the checkpoint has them, from the start"
    )
    parser.add_argument(
        "--guesses",
        type=Path,
        help="what training.guess wrote of this corpus: the decoder learns from it; with --frozen",
    )
    options = parser.parse_args()
    if options.guesses and not options.frozen:
        parser.error("--guesses are of codes that do not change any more: add --frozen")
    return options


def main() -> None:
    options = arguments()
    deadline = time.time() + 60 * options.minutes - SAVING_S
    piece.log_to_terminal()

    device = torch.device(options.device)
    torch.set_float32_matmul_precision("high")
    own_stream(device)
    config = settings.read(options.config, CodecTraining)
    if options.total_minutes:
        config = replace(config, schedule=replace(config.schedule, total_minutes=options.total_minutes))
    if options.frozen:
        config = replace(config, schedule=replace(config.schedule, frozen_from=0.0))
    trainer = Trainer(config, device)
    piece.resume(trainer, checkpoint.load, options, checkpoint.NAME, log)
    corpus = Corpus.open(options.corpus)
    training, held = hold_out(corpus)
    crops = Crops(training, device, np.load(options.guesses) if options.guesses else None)
    for name, module in (
        ("encoder", trainer.codec.encoder),
        ("decoder", trainer.codec.decoder),
        ("discriminators", trainer.discriminators),
    ):
        log.info("%s: %.2f M parameters", name, sum(p.numel() for p in module.parameters()) / 1e6)
    log.info("%d clips, %.1f h", len(training.entries), len(corpus.samples) / SAMPLE_RATE / 3600)

    curves = Curves(options.out, DRAWN)
    train(trainer, crops, curves, options.out, deadline, options.steps)
    checkpoint.save(trainer, options.state, compact=False)
    checkpoint.save(trainer, options.out, compact=True)
    figures = listen(trainer, corpus, held, options.out / "samples.wav")
    piece.report(trainer, curves, figures, log)


if __name__ == "__main__":
    main()
