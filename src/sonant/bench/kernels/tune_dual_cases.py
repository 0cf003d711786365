"""The two-sided feed-forward layers, for the tuner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sonant.bench.kernels.case import Call
from sonant.bench.kernels.tune_cases import copied, normal, random_weight, weight_item
from sonant.config import Quantization
from sonant.kernels import reference, tuning
from sonant.kernels.reference import Sides, split_kinds
from sonant.kernels.triton import dual_ffn, dual_tile
from sonant.kernels.tuning import Tile
from sonant.models.workload import StackWorkload

_EPS = 1e-6
_ITEM_BYTES = 2
DUAL_ROWS = (512, 256, 128, 64, 32)  # of a prefill; 32 serves all smaller numbers


@dataclass(frozen=True)
class DualCase:
    """A product of a two-sided layer: half of the rows are text, half audio."""

    op: str
    where: str
    rows: int
    depth: int
    columns: int
    quantize: Quantization | None = None

    @property
    def gated(self) -> bool:
        return self.op == "dual_norm_gated"

    @property
    def key(self) -> str:
        shape = dual_tile.shape_key(self.depth, self.columns, self.gated, weight_item(self.quantize))
        return tuning.key("dual_ffn", shape, self.rows)

    @property
    def streamed_bytes(self) -> int:
        return 2 * weight_item(self.quantize) * (2 if self.gated else 1) * self.columns * self.depth

    @property
    def bytes(self) -> int:
        return self.streamed_bytes + _ITEM_BYTES * self.rows * (self.depth + self.columns * (1 if self.gated else 2))

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.depth * self.columns * (2 if self.gated else 1)

    def candidates(self) -> list[Tile]:
        item = weight_item(self.quantize)
        found = dual_tile.candidates(self.rows, self.depth, self.columns, self.gated, item)
        return list(dict.fromkeys(found))

    def compiled_as(self, tile: Tile) -> tuple[Any, ...]:
        return self.op, self.quantize, self.depth % tile.k == 0, tile

    def least(self) -> DualCase:
        return replace(self, rows=DUAL_ROWS[-1])

    def make(self, device: torch.device) -> Call:
        kinds = torch.arange(self.rows, device=device) >= self.rows // 2
        x, split = normal(device, 1, self.rows, self.depth), split_kinds(kinds.int()[None])
        wide = (2 if self.gated else 1) * self.columns
        weights = Sides(*(random_weight(device, wide, self.depth, self.quantize) for _ in range(2)))
        if self.gated:
            return Call((x, split, Sides(*(normal(device, self.depth) for _ in range(2))), _EPS, weights), {})
        return Call((x, split, weights, normal(device, 1, self.rows, self.columns)), {})

    def with_other_weights(self, call: Call) -> Call:
        at = 4 if self.gated else 2
        weights = Sides(*(copied(weight) for weight in call.args[at]))
        return Call((*call.args[:at], weights, *call.args[at + 1 :]), call.kwargs)

    def run(self, call: Call, tile: Tile) -> Tensor:
        return getattr(dual_ffn, self.op)(*call.args, tile=tile)

    def expected(self, call: Call) -> Tensor:
        return getattr(reference, self.op)(*call.args)


def dual_cases(stacks: Sequence[StackWorkload], quantize: Quantization | None = None) -> Iterator[DualCase]:
    for rows in DUAL_ROWS:
        for s in stacks:
            if s.dual:
                yield DualCase("dual_norm_gated", f"{s.name} gate, up", rows, s.hidden, s.inner, quantize)
                yield DualCase("dual_linear_add", f"{s.name} down", rows, s.inner, s.hidden, quantize)
