"""What a guided flow does between two evaluations of its estimator.

Each row has two sequences: the guided ones come first, then as many free ones, whose prefix is zero. A sequence is
prefix, time, the previous patch and the patch itself. The estimator's end (norm and projection) gives the patch's
velocity; guidance moves the patch away from where the free velocity leads; the estimator's start turns it into tokens.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sonant.kernels.reference.sampling import uniforms
from sonant.kernels.reference.transformer import rms_norm

_LEAST = 1e-8


class FlowEnds(NamedTuple):
    """The estimator's weights before its layers and after them."""

    in_weight: Tensor  # [hidden, channels]
    in_bias: Tensor
    gain: Tensor  # of the last norm
    eps: float
    out_weight: Tensor  # [channels, hidden]
    out_bias: Tensor


class FlowGiven(NamedTuple):
    """What stays the same during the flow."""

    prefix: Tensor  # [B, n, hidden], for the guided sequences; the free ones have zeros
    past: Tensor  # [B, T, hidden]: tokens of the previous patch
    guidance: Tensor  # [B]


def flow_open(x: Tensor, time: Tensor, given: FlowGiven, ends: FlowEnds) -> Tensor:
    """Tokens [2B, n + 1 + 2T, hidden] of patches x [B, T, channels] float32 at the time [hidden]."""
    own = F.linear(x.to(ends.in_weight.dtype), ends.in_weight, ends.in_bias)
    rest = [time.expand(len(x), 1, -1), given.past, own]
    guided, free = (torch.cat([prefix, *rest], 1) for prefix in (given.prefix, torch.zeros_like(given.prefix)))
    return torch.cat([guided, free])


def flow_move(x: Tensor, hidden: Tensor, length: float, given: FlowGiven, ends: FlowEnds) -> Tensor:
    """Move x [B, T, channels] by -`length` along the velocity of `hidden` [2B, tokens, hidden], the layers' result."""
    last = rms_norm(hidden[:, -x.shape[1] :], ends.gain, ends.eps)
    return guided_step(x, F.linear(last, ends.out_weight, ends.out_bias), given.guidance, length)


def flow_turn(
    x: Tensor, hidden: Tensor, length: float, time: Tensor, given: FlowGiven, ends: FlowEnds
) -> tuple[Tensor, Tensor]:
    """`flow_move`, then `flow_open`: x moved, and its tokens at the next time."""
    moved = flow_move(x, hidden, length, given, ends)
    return moved, flow_open(moved, time, given, ends)


def guided_step(x: Tensor, velocity: Tensor, guidance: Tensor, length: float) -> Tensor:
    """x [B, T, C] float32 moved by -`length` along its velocity [2B, T, C]: the guided half first, then the free one.

    The free velocity is scaled to the guided one's projection onto it (CFG-Zero*). The velocity used is this, plus
    `guidance` [B] times the guided one's difference from it.
    """
    guided, free = velocity.float().chunk(2)
    dims = (1, 2)
    share = (guided * free).sum(dims, keepdim=True) / (free.square().sum(dims, keepdim=True) + _LEAST)
    free = free * share
    return x - length * (free + guidance[:, None, None] * (guided - free))


def normals(seed: Tensor, frame: Tensor, scale: Tensor, count: int) -> Tensor:
    """Normal numbers [B, count] float32 with standard deviation `scale` [B], a function of (seed, frame): `uniforms`
    after the Box-Muller transform."""
    radius, angle = uniforms(seed, frame, count).chunk(2, 1)
    radius, angle = torch.sqrt(-2 * torch.log1p(-radius)), 2 * math.pi * angle
    return scale[:, None] * torch.cat([radius * angle.cos(), radius * angle.sin()], 1)
