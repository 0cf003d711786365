"""The device memory that the engine owns and a model computes in: row state, and the paged KV cache.

All arithmetic on blocks is here, so that a family names rows and positions, but never where they lie. The last row is
scratch, as is block 0: padding writes there, and nobody reads it. A row's numbers lie side by side in one line of
int32, so that a step reads those of all its rows in one gather.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from sonant.layers.attention import PagedContext
from sonant.models.spec import Field


def counters(fields: Iterable[Field]) -> list[Field]:
    """Of the fields that only steps write, those that lie in a row's line: single integers."""
    return [f for f in fields if f.shape == () and f.dtype == torch.int32]


class RowLayout:
    """The columns of 32-bit fields in a line, one after another from column `start` on."""

    def __init__(self, fields: Iterable[Field], start: int) -> None:
        self.places: dict[str, tuple[slice, Field]] = {}
        self.end = start
        for field in fields:
            first, self.end = self.end, self.end + math.prod(field.shape)
            self.places[field.name] = slice(first, self.end), field

    def views(self, lines: Tensor) -> dict[str, Tensor]:
        """The fields in lines [N, columns], by name."""
        named = {name: (lines[:, columns].view(f.dtype), f) for name, (columns, f) in self.places.items()}
        return {name: view.unflatten(1, f.shape) if f.shape else view[:, 0] for name, (view, f) in named.items()}

    def span(self, names: Iterable[str]) -> slice:
        """The columns of fields that lie side by side."""
        places = [self.places[name][0] for name in names]
        assert all(a.stop == b.start for a, b in pairwise(places)), "they lie apart"
        return slice(places[0].start, places[-1].stop)


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
        """Write numbers [B] of rows [B] in one scatter; the fields must lie side by side, in this order."""
        self.columns(values).index_copy_(0, rows, torch.stack(tuple(values.values()), 1))

    def columns(self, names: Iterable[str]) -> Tensor:
        """The fields in all lines, [rows + 1, fields], for code that writes them itself; they must lie as for `put`."""
        return self.lines[:, self.layout.span(names)]

    def decode_context(self, group: str, tables: Tensor, positions: Tensor, span_blocks: int) -> PagedContext:
        """For one new position a row, [B, 1], which attends to all before it."""
        return PagedContext(self.kv[group], tables, positions, None, span_blocks)

    def prefill_context(
        self, group: str, tables: Tensor, positions: Tensor, real: Tensor, span_blocks: int
    ) -> PagedContext:
        """For positions [B, T]; those that are not `real` are padding and are written to scratch."""
        blocks = tables.gather(1, positions // self.block_tokens).long()
        slots = (blocks * self.block_tokens + positions % self.block_tokens).where(real, 0)
        return PagedContext(self.kv[group], tables, positions, slots.flatten(), span_blocks)
