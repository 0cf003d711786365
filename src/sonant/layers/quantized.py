"""Weights of eight bits: projections that replace those of sixteen bits, and convolutions beside them.

Only the weights with most of the bytes to read are quantised: the projections of decoder layers. Embeddings, norms and
the heads that compute logits stay as they are. A codec mostly multiplies, so its widest convolutions may have both
operands in eight bits.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sonant.kernels import ops
from sonant.kernels.reference import Int8Weight, QuantizedWeight
from sonant.kernels.reference.quantized import E4M3


class QuantizedLinear(nn.Module):
    """Replaces an `nn.Linear` without a bias. Its weight is quantised as it is loaded (models/weights/load.py)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.empty(outputs, inputs, dtype=E4M3), requires_grad=False)
        self.scale = nn.Parameter(torch.empty(outputs, dtype=torch.float32), requires_grad=False)

    @property
    def weight(self) -> QuantizedWeight:
        return QuantizedWeight(self.values, self.scale)

    def forward(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight)


class Int8Conv(nn.Module):
    """A convolution's weight [columns, inputs, taps] in eight bits, for calls with so many values that it pays."""

    values: Tensor
    scale: Tensor
    inverse: Tensor

    def __init__(self, weight: Int8Weight) -> None:
        super().__init__()
        for name, part in weight._asdict().items():
            self.register_buffer(name, part, persistent=False)

    @property
    def weight(self) -> Int8Weight:
        return Int8Weight(self.values, self.scale, self.inverse)


Projection = nn.Linear | QuantizedLinear
