"""k-means, for kinds of sounds and for codebooks that start from latents."""

from __future__ import annotations

import torch
from torch import Tensor


def nearest(x: Tensor, vectors: Tensor) -> Tensor:
    """[N, D] → the index of the nearest of [S, D]; |x|² is the same for all and left out."""
    return torch.addmm(vectors.square().sum(1), x, vectors.T, beta=1, alpha=-2).argmin(1)


def settled(x: Tensor, vectors: Tensor, rounds: int) -> Tensor:
    """`vectors` [S, D] moved `rounds` times to the mean of those of x [N, D] that are nearest to each."""
    for _ in range(rounds):
        groups = nearest(x, vectors)
        counts = x.new_zeros(len(vectors)).index_add_(0, groups, x.new_ones(len(x)))[:, None]
        sums = torch.zeros_like(vectors).index_add_(0, groups, x)
        vectors = torch.where(counts > 0, sums / counts.clamp(min=1), vectors)
    return vectors
