"""Stacks of drawn weights, and how far a result is from the exact one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sonant.kernels import reference
from sonant.kernels.reference import Heads, LocalWeights


@dataclass(frozen=True)
class StackCase:
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    layers: int
    sequences: int
    steps: int

    def weights(self, seed: int, device: str = "cpu") -> list[LocalWeights]:
        draws = torch.Generator(device).manual_seed(seed)

        def normal(*shape: int, scale: float = 1.0) -> Tensor:
            return (torch.randn(*shape, generator=draws, device=device) * scale).bfloat16()

        angle = torch.rand(1, self.steps, 1, 64, generator=draws, device=device) * 6.28
        cos, sin = (torch.cat([f(angle), f(angle)], -1).bfloat16() for f in (torch.cos, torch.sin))
        heads = Heads(None, None, cos, sin, self.heads, self.kv_heads, 1e-5)
        qkv, gathered = (self.heads + 2 * self.kv_heads) * 128, self.heads * 128
        return [
            LocalWeights(
                1 + normal(self.hidden, scale=0.2), normal(qkv, self.hidden, scale=self.hidden**-0.5), heads,
                normal(self.hidden, gathered, scale=gathered**-0.5), 1 + normal(self.hidden, scale=0.2),
                normal(2 * self.inner, self.hidden, scale=self.hidden**-0.5),
                normal(self.hidden, self.inner, scale=self.inner**-0.5),
            )
            for _ in range(self.layers)
        ]  # fmt: skip

    def rows(self, seed: int, device: str = "cpu") -> Tensor:
        draws = torch.Generator(device).manual_seed(1000 + seed)
        return torch.randn(self.sequences, self.steps, self.hidden, generator=draws, device=device).bfloat16()


def exact(x: Tensor, layers: list[LocalWeights]) -> Tensor:
    """The result in float64, since the reference would round to bfloat16 after each op."""

    def wide(layer: LocalWeights) -> LocalWeights:
        heads = layer.heads._replace(cos=layer.heads.cos.double(), sin=layer.heads.sin.double())
        weights = {name: getattr(layer, name).double() for name in layer._fields if name != "heads"}
        return LocalWeights(**weights, heads=heads)

    return reference.local_stack(x.double(), [wide(layer) for layer in layers])


def error_of(got: Tensor, expected: Tensor) -> float:
    """The relative error over all values."""
    difference = got.double() - expected.double()
    return float(difference.norm() / expected.double().norm())
