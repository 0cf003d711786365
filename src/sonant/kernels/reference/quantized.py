"""Weights in eight bits: e4m3 values, and for each output channel a float32 scale that they are multiplied by.

All products take weights with or without eight bits. With few rows the eight bits are read and multiplied in the
input's dtype, which represents every e4m3 number exactly, so that only the weight is ever rounded. With many rows a
kernel may round the input to e4m3 as well, with a scale for each row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

E4M3 = torch.float8_e4m3fn
LARGEST = 448.0  # of e4m3


@dataclass(frozen=True, eq=False)
class QuantizedWeight:
    values: Tensor  # [columns, depth] e4m3
    scale: Tensor  # [columns] float32

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    def is_contiguous(self) -> bool:
        return self.values.is_contiguous() and self.scale.is_contiguous()

    def dequantized(self, dtype: torch.dtype) -> Tensor:
        return (self.values.float() * self.scale[:, None]).to(dtype)


Weight = Tensor | QuantizedWeight


def parts_of(weight: Weight) -> tuple[Tensor, Tensor | None]:
    """The weight's values, and the scale of each output channel; None: there is no scale."""
    return (weight.values, weight.scale) if isinstance(weight, QuantizedWeight) else (weight, None)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [..., depth] → e4m3 values, and a scale [..., 1] that maps a row's largest magnitude to the largest number.

    A row of zeros stays zero; its scale is 1.
    """
    wide = x.float()
    most = wide.abs().amax(-1, keepdim=True)
    scale = torch.where(most > 0, most / LARGEST, torch.ones_like(most))
    return (wide / scale).clamp(-LARGEST, LARGEST).to(E4M3), scale


def quantize(weight: Tensor) -> QuantizedWeight:
    """Quantise a weight [columns, depth]."""
    values, scale = quantize_rows(weight)
    return QuantizedWeight(values, scale[:, 0])
