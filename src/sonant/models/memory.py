"""The device memory that the engine owns and a model computes in: row state, and the paged KV cache.

All arithmetic on blocks is here, so that a family says which rows and positions and never where they lie. The last row
is scratch, as is block 0: padding writes there, nobody reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sonant.layers.attention import PagedContext
from sonant.models.row_layout import RowLayout


@dataclass(frozen=True)
class RowValues:
    """Some rows' block tables and numbers, read together."""

    tables: Tensor  # [B, blocks a row]
    numbers: Mapping[str, Tensor]  # by field name, [B, …]

    def __getitem__(self, name: str) -> Tensor:
        return self.numbers[name]


@dataclass(frozen=True)
class Memory:
    rows: Mapping[str, Tensor]  # by field name, [rows + 1, *shape] or as the field's `row_dim` says
    lines: Tensor  # [rows + 1, columns] int32: block table, staged fields, counters
    layout: RowLayout  # of staged fields and counters in a line
    kv: Mapping[str, Tensor]  # by group name, [layers, 2, blocks, block_tokens, heads, dim]
    table_blocks: int  # columns of a line that are the block table
    block_tokens: int

    @property
    def tables(self) -> Tensor:
        return self.lines[:, : self.table_blocks]

    @property
    def scratch_row(self) -> int:
        return len(self.lines) - 1

    def take(self, rows: Tensor) -> RowValues:
        """All numbers of rows [B] in one gather."""
        lines = self.lines[rows]
        return RowValues(lines[:, : self.table_blocks], self.layout.views(lines))

    def put(self, rows: Tensor, values: Mapping[str, Tensor]) -> None:
        """Numbers [B] of rows [B], in one scatter; the fields must lie side by side, in this order."""
        self.columns(values).index_copy_(0, rows, torch.stack(tuple(values.values()), 1))

    def columns(self, names: Iterable[str]) -> Tensor:
        """[rows + 1, fields] of all rows' lines, for who writes there himself; again side by side."""
        return self.lines[:, self.layout.span(names)]

    def decode_context(self, group: str, tables: Tensor, positions: Tensor, span_blocks: int) -> PagedContext:
        """One new position a row, [B, 1], which sees all before it."""
        return PagedContext(self.kv[group], tables, positions, None, span_blocks)

    def prefill_context(
        self, group: str, tables: Tensor, positions: Tensor, real: Tensor, span_blocks: int
    ) -> PagedContext:
        """Positions [B, T]; those that are not `real` are padding, and written to scratch."""
        blocks = tables.gather(1, positions // self.block_tokens).long()
        slots = (blocks * self.block_tokens + positions % self.block_tokens).where(real, 0)
        return PagedContext(self.kv[group], tables, positions, slots.flatten(), span_blocks)

