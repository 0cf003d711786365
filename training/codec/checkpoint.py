"""Saves and resumes a run in safetensors files of at most 15 MiB, the most that some ways home can carry.

A `whole` checkpoint resumes exactly. A `compact` one holds the averaged weights in half precision, codebooks and
discriminators, and no optimiser: an eighth of the size. A run resumed from it warms up anew.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor

from training import state
from training.codec.trainer import Trainer

NAME = "state"
SOUNDS = "sounds.kinds"
_CHAINED = re.compile(r"(?:acoustic_residual_vector_quantizer|rvq_rest\.vq)\.layers\.(\d+)\.")
_OPTIMIZERS = ("optimizer", "judge_optimizer")
_NO_STATE = "optimizer.none"  # before the first step an optimiser has no state, which is a state too


def save(trainer: Trainer, folder: Path, *, compact: bool) -> None:
    meta = {"step_number": trainer.step_number, "minutes": trainer.minutes, "since_restart": trainer.since_restart}
    state.write(folder, NAME, _compact(trainer) if compact else _whole(trainer), meta)


def load(trainer: Trainer, folder: Path) -> None:
    tensors, meta = state.read(folder, NAME)
    trainer.step_number, trainer.minutes = meta["step_number"], meta["minutes"]
    whole = any(n.startswith("optimizer.") for n in tensors)
    trainer.since_restart = meta["since_restart"] if whole else 0

    codebooks = trainer.config.shape.codebooks
    averaged = _first_codebooks(state.under("averaged.", tensors), codebooks)
    codec = _first_codebooks(state.under("codec.", tensors), codebooks)
    if not whole:
        codec = averaged | codec
    missing, unexpected = trainer.codec.load_state_dict({n: t.float() for n, t in codec.items()}, strict=False)
    wrong = [n for n in missing if "._codebook." not in n and not n.startswith("quantizer.")]
    if wrong or unexpected:
        raise ValueError(f"{folder} does not fit this config: missing {wrong[:3]}, unexpected {unexpected[:3]}")
    with torch.no_grad():
        for name, value in trainer.averaged.items():
            value.copy_(averaged[name])
    judges = {n: t.float() for n, t in state.under("discriminators.", tensors).items()}
    if judges:  # without them, as in a checkpoint that only kept the codec, new ones start
        trainer.discriminators.load_state_dict(judges)
    if whole:
        for name in _OPTIMIZERS:
            kept = state.under(f"{name}.", {n: t for n, t in tensors.items() if n != _NO_STATE})
            state.restore_optimizer(getattr(trainer, name), kept)


def _first_codebooks(tensors: dict[str, Tensor], count: int) -> dict[str, Tensor]:
    """A codec of more codebooks begins like one of fewer: each only adds to those before it."""
    depths = {name: 1 + int(found[1]) for name in tensors if (found := _CHAINED.search(name))}
    return {name: value for name, value in tensors.items() if depths.get(name, 0) < count}


def _whole(trainer: Trainer) -> dict[str, Tensor]:
    tensors = {f"codec.{n}": t for n, t in trainer.codec.state_dict().items()}
    tensors |= {f"averaged.{n}": t for n, t in trainer.averaged.items()}
    tensors |= {f"discriminators.{n}": t for n, t in trainer.discriminators.state_dict().items()}
    for name in _OPTIMIZERS:
        tensors |= state.optimizer_tensors(getattr(trainer, name), f"{name}.")
    if not any(n.startswith("optimizer.") for n in tensors):
        tensors[_NO_STATE] = torch.zeros(1)
    return tensors


def _compact(trainer: Trainer) -> dict[str, Tensor]:
    tensors = {f"averaged.{n}": t.half() for n, t in trainer.averaged.items()}
    # Running sums span more than half precision does.
    tensors |= {f"codec.{n}": t for n, t in trainer.codec.state_dict().items() if ".codebook." in n or n == SOUNDS}
    return tensors | {f"discriminators.{n}": t.half() for n, t in trainer.discriminators.state_dict().items()}
