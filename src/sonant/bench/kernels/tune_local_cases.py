"""The middle of a local layer, for the tuner. Its form as two kernels is what the tuner calls the library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sonant.bench.kernels.case import Call
from sonant.bench.kernels.tune_cases import copied, normal, random_weight, weight_item
from sonant.config import Quantization
from sonant.kernels import reference, tuning
from sonant.kernels.reference import Heads
from sonant.kernels.triton import local_out, local_tile
from sonant.kernels.tuning import Tile
from sonant.models.workload import StackWorkload

_EPS = 1e-6
_ITEM_BYTES = 2  # of values
ROWS = (64, 32, 16)  # 16 serves all smaller numbers


@dataclass(frozen=True)
class LocalOutCase:
    where: str
    rows: int  # the bucket
    batch: int
    steps: int
    heads: int
    kv_heads: int
    dim: int
    columns: int
    quantize: Quantization | None = None

    @property
    def op(self) -> str:
        return "local_attention_add"

    @property
    def key(self) -> str:
        shape = local_tile.shape_key(self.heads, self.kv_heads, self.dim, self.columns, weight_item(self.quantize))
        return tuning.key("local_out", shape, self.rows)

    @property
    def streamed_bytes(self) -> int:
        return weight_item(self.quantize) * self.columns * self.heads * self.dim

    @property
    def bytes(self) -> int:
        values = (self.heads + 2 * self.kv_heads) * self.dim + 2 * self.columns
        return self.streamed_bytes + _ITEM_BYTES * self.batch * self.steps * values

    @property
    def flops(self) -> int:
        return self.batch * self.steps * self.heads * self.dim * (4 * self.steps + 2 * self.columns)

    def candidates(self) -> list[Tile]:
        item = weight_item(self.quantize)
        found = local_tile.candidates(self.heads, self.kv_heads, self.dim, self.columns, item)
        return list(dict.fromkeys(found))

    def compiled_as(self, tile: Tile) -> tuple[Any, ...]:
        return self.op, self.rows, self.steps, self.quantize, tile

    def least(self) -> LocalOutCase:
        return self

    def make(self, device: torch.device) -> Call:
        width = self.heads * self.dim
        qkv = normal(device, self.batch, self.steps, (self.heads + 2 * self.kv_heads) * self.dim)
        cos, sin = (normal(device, 1, self.steps, 1, self.dim) for _ in range(2))
        heads = Heads(None, None, cos, sin, self.heads, self.kv_heads, _EPS)
        weight = random_weight(device, self.columns, width, self.quantize)
        return Call((qkv, heads, weight, normal(device, self.batch, self.steps, self.columns)), {})

    def with_other_weights(self, call: Call) -> Call:
        qkv, heads, weight, residual = call.args
        return Call((qkv, heads, copied(weight), residual), {})

    def run(self, call: Call, tile: Tile) -> Tensor:
        return local_out.local_attention_add(*call.args, **call.kwargs, tile=tile)

    def expected(self, call: Call) -> Tensor:
        return reference.local_attention_add(*call.args)


def local_cases(stacks: Sequence[StackWorkload], quantize: Quantization | None = None) -> Iterator[LocalOutCase]:
    """Cases with as many sequences as a bucket of rows has room for."""
    for rows in ROWS:
        for s in stacks:
            if s.tokens > 1:
                steps = min(s.context, rows)
                where, sequences = f"{s.name} attention, o", rows // steps
                yield LocalOutCase(where, rows, sequences, steps, s.heads, s.kv_heads, s.head_dim, s.hidden, quantize)
