"""Rows: the device memory of running requests. A request owns one row while it speaks (but see parking.py).

What the host sets (sampling, limits, block table) lies in one int32 slab, so that all rows that change in a step are
sent in one copy and written by one kernel. The host never touches what the steps compute: of that, numbers lie in the
same slab after the host's columns (see models/memory.py), the rest in tensors of its own. The last row is scratch for
padding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sonant.device_copy import send_into, to_device
from sonant.models.memory import Memory, RowLayout, counters
from sonant.models.spec import ModelSpec


class Rows:
    def __init__(self, spec: ModelSpec, count: int, blocks_per_row: int, device: torch.device) -> None:
        self.device, self.blocks_per_row = device, blocks_per_row
        self.scratch = count
        self.free = list(range(count - 1, -1, -1))
        # Called before a row is copied aside: the copy must come after all work on it, on whichever stream.
        self.before_copy: Callable[[int], None] = lambda row: None
        numbers = counters(spec.state)
        self.staged_layout = RowLayout(spec.staged, blocks_per_row)
        self.layout = RowLayout([*spec.staged, *numbers], blocks_per_row)
        self.slab = torch.zeros(count + 1, self.layout.end, dtype=torch.int32, device=device)
        self.tensors = [f for f in spec.state if f not in numbers]  # fields with a tensor of their own
        self.fields: dict[str, Tensor] = {
            f.name: torch.empty(*f.shape[: f.row_dim], count + 1, *f.shape[f.row_dim :], dtype=f.dtype, device=device)
            for f in self.tensors
        }
        self.fields |= self.layout.views(self.slab)
        self.staged: dict[int, np.ndarray[Any, np.dtype[np.int32]]] = {}
        kinds = [("f" if f.dtype == torch.float32 else "i", f) for f in spec.staged]
        # Packs all of a row's numbers at once: assigning each to an array took most of the time to plan a newcomer.
        self._numbers = Struct("=" + "".join(f"{math.prod(f.shape)}{kind}" for kind, f in kinds))
        self._single = {f.name: f.shape == () for f in spec.staged}

    def memory(self, kv: Mapping[str, Tensor], block_tokens: int) -> Memory:
        """The memory in which a model computes."""
        return Memory(self.fields, self.slab, self.layout, kv, self.blocks_per_row, block_tokens)

    def take(self) -> int:
        return self.free.pop()

    def give_back(self, row: int) -> None:
        self.free.append(row)

    def contents(self, row: int) -> list[Tensor]:
        """Views of all that a row holds: its line in the slab, and its place in every tensor."""
        return [self.slab[row], *(self.fields[f.name].select(f.row_dim, row) for f in self.tensors)]

    def stage(self, row: int, values: Mapping[str, Any], blocks: list[int]) -> None:
        """Set the host's part of a row; `apply` sends it."""
        line = np.zeros(self.staged_layout.end, np.int32)
        line[: len(blocks)] = blocks
        numbers: list[float] = []
        for name, single in self._single.items():
            value = values[name]
            numbers.append(value) if single else numbers.extend(np.ravel(value).tolist())
        self._numbers.pack_into(line.data, 4 * self.blocks_per_row, *numbers)
        self.staged[row] = line

    def apply(self) -> None:
        """Send all rows staged since the last call with one copy and one kernel; a single row needs the copy only."""
        if not self.staged:
            return
        if len(self.staged) == 1:
            ((row, line),) = self.staged.items()
            send_into(line, self.slab[row, : self.staged_layout.end])
            self.staged.clear()
            return
        rows = to_device(np.array(list(self.staged)), self.device)
        lines = to_device(np.stack(list(self.staged.values())), self.device)
        self.slab[:, : self.staged_layout.end].index_copy_(0, rows, lines)
        self.staged.clear()
