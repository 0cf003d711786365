"""The middle of a layer over a frame's codebooks, for the tuner: its two kernels are what it calls the library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sonant.bench.kernels.case import Call
from sonant.bench.kernels.tune_cases import normal
from sonant.kernels import reference, tuning
from sonant.kernels.reference import Heads
from sonant.kernels.triton import short_out
from sonant.kernels.tuning import Tile
from sonant.models.workload import StackWorkload

_EPS = 1e-6
_ITEM_BYTES = 2
_FIRST = 9  # the middle of a frame


@dataclass(frozen=True)
class ShortOutCase:
    """Of one row."""

    where: str
    heads: int
    kv_heads: int
    dim: int
    columns: int
    positions: int

    @property
    def op(self) -> str:
        return "short_attention_add"

    @property
    def rows(self) -> int:
        return 1

    @property
    def key(self) -> str:
        shape = short_out.shape_key(self.heads, self.kv_heads, self.dim, self.columns, _ITEM_BYTES)
        return tuning.key("short_out", shape, self.rows)

    @property
    def streamed_bytes(self) -> int:
        return _ITEM_BYTES * self.columns * self.heads * self.dim

    @property
    def bytes(self) -> int:
        values = (self.heads + 2 * self.kv_heads * (1 + _FIRST)) * self.dim + 2 * self.columns
        return self.streamed_bytes + _ITEM_BYTES * values

    @property
    def flops(self) -> int:
        return self.heads * self.dim * (4 * (_FIRST + 1) + 2 * self.columns)

    def candidates(self) -> list[Tile]:
        return list(short_out.candidates(self.kv_heads))

    def compiled_as(self, tile: Tile) -> tuple[Any, ...]:
        return self.op, tile

    def least(self) -> ShortOutCase:
        return self

    def make(self, device: torch.device) -> Call:
        width = self.heads * self.dim
        qkv = normal(device, 1, 1, (self.heads + 2 * self.kv_heads) * self.dim)
        cos, sin, q_weight, k_weight = (normal(device, 1, 1, 1, self.dim) for _ in range(4))
        heads = Heads(q_weight.flatten(), k_weight.flatten(), cos, sin, self.heads, self.kv_heads, _EPS)
        cache = normal(device, 2, 1, self.positions, self.kv_heads, self.dim)
        weight = normal(device, self.columns, width) * width**-0.5
        return Call((qkv, heads, cache, _FIRST, weight, normal(device, 1, 1, self.columns)), {})

    def with_other_weights(self, call: Call) -> Call:
        *before, weight, residual = call.args
        return Call((*before, weight.clone(), residual), {})

    def in_turn(self, calls: list[Call]) -> list[Call]:
        return calls

    def run(self, call: Call, tile: Tile) -> Tensor:
        return short_out.short_attention_add(*call.args, tile=tile)

    def expected(self, call: Call) -> Tensor:
        return reference.short_attention_add(*call.args)


def short_cases(stacks: Sequence[StackWorkload]) -> Iterator[ShortOutCase]:
    for s in stacks:
        if s.per_frame and s.tokens == 1:
            yield ShortOutCase(f"{s.name} attention, o", s.heads, s.kv_heads, s.head_dim, s.hidden, s.context)
