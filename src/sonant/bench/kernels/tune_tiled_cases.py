"""Products of 33 to 64 rows in sixteen bits, for the tuner: those of tiled_gemm.py against those without it, which the
tuner calls the library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sonant.bench.kernels.case import Call
from sonant.bench.kernels.tune_cases import ProductCase, copied, normal, random_weight
from sonant.kernels import reference, tuning
from sonant.kernels.reference import Unscaled
from sonant.kernels.triton import gemv, tiled_tile
from sonant.kernels.triton.norm import rms_norm
from sonant.kernels.triton.swiglu import swiglu
from sonant.kernels.tuning import Tile
from sonant.models.workload import StackWorkload

_EPS = 1e-6
TILED_ROWS = 64


@dataclass(frozen=True)
class TiledCase(ProductCase):
    """linear, linear_add, or norm_gated, whose norm is a kernel of its own, with the gain in the weights."""

    @property
    def key(self) -> str:
        shape = tiled_tile.shape_key(self.depth, self.columns, self.gated, self.weight_item)
        return tuning.key("tiled", shape, self.rows)

    def candidates(self) -> list[Tile]:
        return list(
            dict.fromkeys(tiled_tile.candidates(self.rows, self.depth, self.columns, self.gated, self.weight_item))
        )

    def compiled_as(self, tile: Tile) -> tuple[Any, ...]:
        return "tiled", self.op, tile

    def make(self, device: torch.device) -> Call:
        x = normal(device, self.rows, 1, self.depth)
        weight = random_weight(device, (2 if self.gated else 1) * self.columns, self.depth, None)
        residual = normal(device, self.rows, 1, self.columns) if self.op == "linear_add" else None
        gain = torch.ones(self.depth, dtype=x.dtype, device=device) if self.gated else None
        return Call((x, weight, residual, gain), {})

    def with_other_weights(self, call: Call) -> Call:
        x, weight, *others = call.args
        return Call((x, copied(weight), *others), {})

    def run(self, call: Call, tile: Tile) -> Tensor:
        x, weight, residual, gain = call.args
        if tile.library:
            return self._by_library(x, weight, residual, gain)
        given = x if gain is None else rms_norm(x, gain, _EPS)
        out = gemv.tiled(given, weight, residual=residual, gated=self.gated, tile=tile)
        assert out is not None
        return out

    def _by_library(self, x: Tensor, weight: Tensor, residual: Tensor | None, gain: Tensor | None) -> Tensor:
        """The product as the engine computes it without tiled_gemm.py."""
        out = gemv.product_of_few(x, weight, gain=gain, eps=_EPS, gated=self.gated, residual=residual)
        if out is not None:
            return out
        if residual is not None:
            return residual.view(-1, self.columns).addmm_(x.flatten(0, -2), weight.T).view(residual.shape)
        product = reference.linear(x, weight)
        return swiglu(product, Unscaled(x, _EPS)) if self.gated else product

    def expected(self, call: Call) -> Tensor:
        x, weight, residual, gain = call.args
        if gain is not None:
            return reference.norm_gated(x, gain, _EPS, weight)
        return reference.linear(x, weight) if residual is None else reference.linear_add(x, weight, residual.clone())


def tiled_cases(stacks: Sequence[StackWorkload]) -> Iterator[TiledCase]:
    for s in stacks:
        yield TiledCase("linear", f"{s.name} qkv", TILED_ROWS, s.hidden, s.qkv)
        yield TiledCase("linear_add", f"{s.name} o", TILED_ROWS, s.heads * s.head_dim, s.hidden)
        yield TiledCase("norm_gated", f"{s.name} gate, up", TILED_ROWS, s.hidden, s.inner)
        yield TiledCase("linear_add", f"{s.name} down", TILED_ROWS, s.inner, s.hidden)
        if s.draws:
            yield TiledCase("linear", f"{s.name} head", TILED_ROWS, s.hidden, s.vocab)
