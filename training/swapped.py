"""A model with other weights for a while: averaged ones are validated and exported, trained ones go on learning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def swapped(parameters: Mapping[str, nn.Parameter], values: Mapping[str, Tensor]) -> Iterator[None]:
    """`parameters` hold `values`, by name, until the block ends."""
    kept = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    _assign(parameters, values)
    try:
        yield
    finally:
        _assign(parameters, kept)


@torch.no_grad()
def _assign(parameters: Mapping[str, nn.Parameter], values: Mapping[str, Tensor]) -> None:
    for name, parameter in parameters.items():
        parameter.copy_(values[name])
