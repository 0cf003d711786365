"""Weights in eight bits: e4m3 values, and for each output channel a float32 that they are multiplied by.

Whoever multiplies by a weight takes either kind. Few rows read the eight bits and multiply in the values' own dtype, of
which every e4m3 number is one, so that only the weight was ever rounded. With many rows a kernel may round the input
to e4m3 as well, with a scale for each row.
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
    """What is read, and what the product of each channel is multiplied by; None: by nothing."""
    return (weight.values, weight.scale) if isinstance(weight, QuantizedWeight) else (weight, None)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [..., depth] → e4m3 values, and a scale [..., 1] that gives the largest magnitude of a row the largest number.

    A row of zeros stays one; its scale is 1.
    """
    wide = x.float()
    most = wide.abs().amax(-1, keepdim=True)
    scale = torch.where(most > 0, most / LARGEST, torch.ones_like(most))
    return (wide / scale).clamp(-LARGEST, LARGEST).to(E4M3), scale


def quantize(weight: Tensor) -> QuantizedWeight:
    """Of a weight [columns, depth]."""
    values, scale = quantize_rows(weight)
    return QuantizedWeight(values, scale[:, 0])
