"""Rows: the device memory of running requests. A request owns one row from admission to its last sample.

What the host decides (sampling, limits, block table) lies in one int32 slab, so that all rows that change in a
step travel in one copy and land with one kernel. What the steps compute the host never touches: numbers lie in the same
slab, behind the host's columns (see models/row_layout.py), the rest in tensors of its own. The last row is scratch for
padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sonant.models.base import ModelSpec, to_device
from sonant.models.row_layout import LINES, Columns, counted


class Rows:
    def __init__(self, spec: ModelSpec, count: int, blocks_per_row: int, device: torch.device) -> None:
        self.device = device
        self.scratch = count
        self.free = list(range(count - 1, -1, -1))
        self.columns = Columns(spec.staged, blocks_per_row)
        counters = counted(spec.state)
        counts = Columns(counters, self.columns.end)
        self.slab = torch.zeros(count + 1, counts.end, dtype=torch.int32, device=device)
        self.tables = self.slab[:, :blocks_per_row]
        self.fields: dict[str, Tensor] = {
            f.name: torch.empty(*f.shape[: f.row_dim], count + 1, *f.shape[f.row_dim :], dtype=f.dtype, device=device)
            for f in spec.state
            if f not in counters
        }
        self.fields |= {**self.columns.views(self.slab), **counts.views(self.slab), LINES: self.slab}
        self.staged: dict[int, np.ndarray[Any, np.dtype[np.int32]]] = {}

    def take(self) -> int:
        return self.free.pop()

    def give_back(self, row: int) -> None:
        self.free.append(row)

    def stage(self, row: int, values: Mapping[str, Any], blocks: list[int]) -> None:
        """Set what the host decides of a row; `apply` sends it."""
        line = np.zeros(self.columns.end, np.int32)
        line[: len(blocks)] = blocks
        for name, (columns, f) in self.columns.places.items():
            dtype = np.float32 if f.dtype == torch.float32 else np.int32
            line[columns] = np.asarray(values[name], dtype).reshape(-1).view(np.int32)
        self.staged[row] = line

    def apply(self) -> None:
        """One copy and one kernel for all rows staged since the last call."""
        if not self.staged:
            return
        rows = to_device(np.array(list(self.staged)), self.device)
        lines = to_device(np.stack(list(self.staged.values())), self.device)
        self.slab[:, : self.columns.end].index_copy_(0, rows, lines)
        self.staged.clear()
