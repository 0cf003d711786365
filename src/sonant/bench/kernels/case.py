"""One op at one shape: how its arguments are made, and the bytes and operations that it cannot avoid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sonant.config import Quantization
from sonant.kernels.reference import Weight, quantize

_SCALE_BYTES = 4


def use(device: torch.device) -> None:
    """Triton launches on this thread's current device, wherever a kernel's arguments are, and a thread's first is 0."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


@dataclass(frozen=True)
class Call:
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Rival:
    """Another kernel for the same work, which may need its arguments in another form."""

    prepare: Callable[[Call], Call]  # not measured
    function: Callable[..., Any]


@dataclass(frozen=True)
class Case:
    op: str
    where: str  # the op's place in the model: "talker 1.7b qkv"
    rows: int
    make: Callable[[], Call]  # with fresh weights and cache
    streamed_bytes: int  # of weights and KV cache, which no call finds in the device's own cache
    bytes: int  # all that must be read or written
    flops: int = 0
    usual: Callable[..., Any] | None = None  # what our kernel is compared with; None: the reference
    rivals: Mapping[str, Rival] = field(default_factory=dict)


class CaseMaker:
    """`quantize`: the form into which weights of layers are quantised; None: they are not."""

    def __init__(self, device: torch.device, dtype: torch.dtype, quantize: Quantization | None = None) -> None:
        self.device, self.dtype, self.item, self.quantize = device, dtype, dtype.itemsize, quantize

    def weight(self, columns: int, depth: int) -> Weight:
        """Random weights of a layer's projection."""
        drawn = self.normal(columns, depth) * depth**-0.5
        return drawn if self.quantize is None else quantize(drawn)

    def weight_bytes(self, columns: int, depth: int) -> int:
        return columns * depth * self.item if self.quantize is None else columns * (depth + _SCALE_BYTES)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self.device).to(self.dtype)
