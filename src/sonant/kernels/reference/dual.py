"""Layers in which a position is text or audio, and each kind has its own norms and feed-forward weights.

`split_kinds` sorts the positions once for all layers. Nothing here waits for the device or has a shape that depends on
values, so a graph can capture it. Positions that are neither are padding: the norm and what is computed from it are
zero there, the residual stream stays as it is, and nothing that a padding position holds reaches another.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from sonant.kernels.reference.quantized import Weight
from sonant.kernels.reference.transformer import linear, norm_gated, rms_norm

TEXT, AUDIO, PADDING = 0, 1, 2


W = TypeVar("W", bound=Weight, covariant=True)


class Sides(NamedTuple, Generic[W]):
    """Two weights or gains of one shape and kind."""

    text: W
    audio: W


class Split(NamedTuple):
    """Which position is text and which is audio."""

    kinds: Tensor  # [B, T] int32: TEXT, AUDIO or PADDING
    order: Tensor  # [B·T] int32: flat positions, those of text first, then of audio, then padding
    counts: Tensor  # [2] int32: positions of text, of audio


def split_kinds(kinds: Tensor) -> Split:
    kinds = kinds.int().contiguous()
    flat = kinds.flatten()
    counts = torch.stack([(flat == TEXT).sum(), (flat == AUDIO).sum()])
    return Split(kinds, torch.argsort(flat, stable=True).int(), counts.int())


def dual_norm(x: Tensor, split: Split, gains: Sides[Tensor], eps: float) -> Tensor:
    """RMSNorm of [B, T, H] with the position's own gain."""
    text, audio = (rms_norm(x, gain, eps) for gain in gains)
    return _own(split, text, audio, torch.zeros_like(text))


def dual_norm_gated(x: Tensor, split: Split, gains: Sides[Tensor], eps: float, weights: Sides[Weight]) -> Tensor:
    """`dual_norm`, then SwiGLU with weights [2I, H] → [B, T, I]; the first half of each makes the gate."""
    text, audio = (norm_gated(x, gain, eps, weight) for gain, weight in zip(gains, weights, strict=True))
    return _own(split, text, audio, torch.zeros_like(text))


def dual_linear_add(inner: Tensor, split: Split, weights: Sides[Weight], residual: Tensor) -> Tensor:
    """The end of the branch, weights [H, I]. It may overwrite `residual`, which must not be used afterwards."""
    text, audio = (residual + linear(inner, weight) for weight in weights)
    return _own(split, text, audio, residual)


def _own(split: Split, text: Tensor, audio: Tensor, padding: Tensor) -> Tensor:
    kinds = split.kinds[..., None]
    return torch.where(kinds == TEXT, text, torch.where(kinds == AUDIO, audio, padding))
