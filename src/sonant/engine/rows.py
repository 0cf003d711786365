"""Rows: the device memory of running requests. A request owns one row from admission to its last sample.

What the host decides (sampling, limits, block table) lies in one int32 slab, so that all rows that change in a
step travel in one copy and land with one kernel. What the steps compute lies in tensors of its own that the host
never touches. The last row is scratch for padding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sonant.models.base import Field, ModelSpec, to_device


class Rows:
    def __init__(self, spec: ModelSpec, count: int, blocks_per_row: int, device: torch.device) -> None:
        self.device = device
        self.scratch = count
        self.free = list(range(count - 1, -1, -1))
        self.layout: dict[str, tuple[slice, Field]] = {}
        width = blocks_per_row
        for f in spec.staged:
            size = math.prod(f.shape)
            self.layout[f.name] = slice(width, width + size), f
            width += size
        self.slab = torch.zeros(count + 1, width, dtype=torch.int32, device=device)
        self.tables = self.slab[:, :blocks_per_row]
        self.fields: dict[str, Tensor] = {
            f.name: torch.empty(*f.shape[: f.row_dim], count + 1, *f.shape[f.row_dim :], dtype=f.dtype, device=device)
            for f in spec.state
        }
        for name, (columns, f) in self.layout.items():
            view = self.slab[:, columns].view(f.dtype)
            self.fields[name] = view.unflatten(1, f.shape) if f.shape else view[:, 0]
        self.staged: dict[int, np.ndarray[Any, np.dtype[np.int32]]] = {}

    def take(self) -> int:
        return self.free.pop()

    def give_back(self, row: int) -> None:
        self.free.append(row)

    def stage(self, row: int, values: Mapping[str, Any], blocks: list[int]) -> None:
        """Set what the host decides of a row; `apply` sends it."""
        line = np.zeros(self.slab.shape[1], np.int32)
        line[: len(blocks)] = blocks
        for name, (columns, f) in self.layout.items():
            dtype = np.float32 if f.dtype == torch.float32 else np.int32
            line[columns] = np.asarray(values[name], dtype).reshape(-1).view(np.int32)
        self.staged[row] = line

    def apply(self) -> None:
        """One copy and one kernel for all rows staged since the last call."""
        if not self.staged:
            return
        rows = to_device(np.array(list(self.staged)), self.device)
        self.slab.index_copy_(0, rows, to_device(np.stack(list(self.staged.values())), self.device))
        self.staged.clear()
