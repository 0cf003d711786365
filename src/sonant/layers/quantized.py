"""Projections whose weights have eight bits, in the place of those that have sixteen.

Only what reads most bytes is quantised: the projections of decoder layers. Embeddings, norms and the heads that draws
are made from stay as they are, and so do codecs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sonant.kernels import ops
from sonant.kernels.reference import QuantizedWeight
from sonant.kernels.reference.quantized import E4M3


class QuantizedLinear(nn.Module):
    """Stands for an `nn.Linear` without a bias. Its weight is laid out by whoever loads (models/weights/load.py)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.empty(outputs, inputs, dtype=E4M3), requires_grad=False)
        self.scale = nn.Parameter(torch.empty(outputs, dtype=torch.float32), requires_grad=False)

    @property
    def weight(self) -> QuantizedWeight:
        return QuantizedWeight(self.values, self.scale)

    def forward(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight)


Projection = nn.Linear | QuantizedLinear
