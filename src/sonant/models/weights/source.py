"""What all stores of tensors have in common, whether one file, many, or a pickle.

A store is read in windows: whatever a window maps is unmapped at its end, so that a store as large as memory can be
read without ever being held whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch

Read = Callable[[str, int, int], torch.Tensor]  # rows [start, end) of a tensor; a scalar is one row


@dataclass(frozen=True)
class StoredTensor:
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def rows(self) -> int:
        return self.shape[0] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize


class TensorSource(Protocol):
    @property
    def label(self) -> str:
        """The file's name in messages."""

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """All stored tensors, in the best order to read them; known without reading any."""

    def window(self) -> AbstractContextManager[Read]:
        """A function that reads rows until the window is closed; what it has read must have been copied by then."""
