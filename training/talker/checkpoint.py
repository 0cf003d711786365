"""Saves and resumes a run in safetensors files of at most 15 MiB, the most that some ways home can carry.

A `whole` checkpoint resumes exactly. A `compact` one holds the averaged weights in half precision and no optimiser:
an eighth of the size. A run resumed from it warms up anew, and so does one that goes on from an exported voice.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from sonant.models.weights import SafetensorsFile, load_into
from training import state
from training.talker.trainer import Trainer

NAME = "talker"
_VOICE = "model.safetensors"


def save(trainer: Trainer, folder: Path, *, compact: bool) -> None:
    meta = {"step_number": trainer.step_number, "minutes": trainer.minutes, "since_restart": trainer.since_restart}
    if compact:
        tensors = {f"averaged.{n}": t.half() for n, t in trainer.averaged.items()}
    else:
        tensors = {f"averaged.{n}": t for n, t in trainer.averaged.items()}
        tensors |= {f"talker.{n}": t for n, t in trainer.talker.named_parameters()}
        tensors |= state.optimizer_tensors(trainer.optimizer, "optimizer.")
    state.write(folder, NAME, tensors, meta)


def averaged(folder: Path) -> dict[str, Tensor]:
    """The weights to export, by their names in the talker."""
    return state.under("averaged.", state.read(folder, NAME)[0])


def load(trainer: Trainer, folder: Path) -> None:
    if (folder / _VOICE).exists():
        load_into(trainer.talker, SafetensorsFile(folder / _VOICE), prefix="talker.")
        torch._foreach_copy_(list(trainer.averaged.values()), [p.detach() for p in trainer.talker.parameters()])
        return
    tensors, meta = state.read(folder, NAME)
    trainer.step_number, trainer.minutes = meta["step_number"], meta["minutes"]
    average = state.under("averaged.", tensors)
    weights = state.under("talker.", tensors)
    optimizer = state.under("optimizer.", tensors)
    trainer.since_restart = meta["since_restart"] if optimizer else 0
    weights = weights or average
    wrong = trainer.averaged.keys() ^ weights.keys() or {
        n for n, t in trainer.averaged.items() if t.shape != weights[n].shape
    }
    if wrong:
        raise ValueError(f"{folder} does not fit this config: {sorted(wrong)[:3]}")
    with torch.no_grad():
        for name, parameter in trainer.talker.named_parameters():
            parameter.copy_(weights[name])
            trainer.averaged[name].copy_(average[name])
    if optimizer:
        state.restore_optimizer(trainer.optimizer, optimizer)
