"""How many threads a CPU's engine computes with.

torch takes as many as there are cores, and has them wait for each other at every operator. Where front ends, prompts
and clients run on the same cores, all threads wait for the one whose core was taken away: with two cores a step of four
rows takes twice as long with two threads as with one.
"""

from __future__ import annotations

import os

import torch

from sonant.cores import usable_cores


def use_threads(asked: int | None, device: str) -> None:
    """Use as many threads as were asked for; else as the environment says; else one for each core but one."""
    if asked is None and ("OMP_NUM_THREADS" in os.environ or _on_gpu(device)):
        return
    torch.set_num_threads(asked or max(1, usable_cores() - 1))


def _on_gpu(device: str) -> bool:
    return device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
