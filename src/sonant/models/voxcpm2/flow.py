"""Flow matching, from noise to a patch: Euler's method along the estimator's velocities, with CFG.

What does not depend on a request is computed once for each number of steps, in the model's own dtype, as officially:
the grid, which is denser near the noise, the lengths of the steps, and the embeddings of their times. CFG-Zero*: in the
first steps nothing moves, and the free velocity, whose prefix is zero, is scaled to the guided one's projection onto it
before it is subtracted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sonant.kernels import ops
from sonant.kernels.reference import FlowGiven
from sonant.models.voxcpm2.modules import Estimator

_STILL_SHARE = 0.04  # of the grid's points: as many steps, but at least one, do not move
_TIME_SCALE = 1000


@dataclass(frozen=True)
class Schedule:
    """For the steps that move: their lengths, and the embeddings of their times."""

    lengths: tuple[float, ...]
    times: Tensor  # [steps, hidden]


def evaluations(steps: int) -> int:
    """How often the estimator is evaluated in so many steps: once for each that moves."""
    return steps - max(1, int((steps + 1) * _STILL_SHARE))


@torch.no_grad()
def schedule(estimator: Estimator, steps: int) -> Schedule:
    weight = estimator.in_proj.weight
    place = torch.device("cpu") if weight.is_meta else weight.device  # the lengths are read below
    grid = torch.linspace(1, 0, steps + 1, dtype=weight.dtype, device=place)
    grid = grid + (torch.cos(torch.pi / 2 * grid) - 1 + grid)
    still = steps - evaluations(steps)
    lengths, times = [], []
    now, length = grid[0], grid[0] - grid[1]
    for step in range(1, len(grid)):
        if step > still:
            lengths.append(length)
            times.append(now)
        now = now - length
        if step < steps:
            length = now - grid[step + 1]
    moments = torch.stack(times).to(weight.device)
    told = estimator.time_mlp(_sinusoids(moments, weight.shape[0]))
    none = estimator.delta_time_mlp(_sinusoids(torch.zeros_like(moments[:1]), weight.shape[0]))
    return Schedule(tuple(float(length) for length in lengths), told + none)


def _sinusoids(times: Tensor, dim: int) -> Tensor:
    half = dim // 2
    index = torch.arange(half, dtype=times.dtype, device=times.device)
    angles = _TIME_SCALE * times[:, None] * torch.exp(index * -(math.log(10_000) / (half - 1)))
    return torch.cat([angles.sin(), angles.cos()], -1)


def flow(
    estimator: Estimator, plan: Schedule, noise: Tensor, prefix: Tensor, before: Tensor, guidance: Tensor
) -> Tensor:
    """noise and before (the previous patch) [B, patch_size, feat_dim], prefix [B, 2, hidden], guidance [B] → patch."""
    ends = estimator.ends()
    given = FlowGiven(prefix, estimator.tokens_of(before), guidance)
    x, times = noise, plan.times.unbind()
    tokens = ops.flow_open(x, times[0], given, ends)
    for length, time in zip(plan.lengths[:-1], times[1:], strict=True):
        x, tokens = ops.flow_turn(x, estimator.decoder.through(tokens), length, time, given, ends)
    return ops.flow_move(x, estimator.decoder.through(tokens), plan.lengths[-1], given, ends)
