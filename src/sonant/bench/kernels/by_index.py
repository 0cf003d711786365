"""Two-sided layers the usual way, to compare with: each side's rows are gathered, computed and scattered back.

The indices are computed once. A boolean index, which is more usual still, computes them anew for each product, and the
host waits for the device to count them: no graph could hold that, and it would be slower than this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from sonant.kernels import reference
from sonant.kernels.reference import Sides, Split, Weight


class ByIndex(NamedTuple):
    text: Tensor  # flat positions
    audio: Tensor

    @classmethod
    def of(cls, split: Split) -> ByIndex:
        text, audio = split.counts.tolist()
        order = split.order.long()
        return cls(order[:text], order[text : text + audio])

    def dual_norm(self, x: Tensor, split: Split, gains: Sides[Tensor], eps: float) -> Tensor:
        return self._each(x, lambda rows, side: reference.rms_norm(rows, gains[side], eps))

    def dual_norm_gated(
        self, x: Tensor, split: Split, gains: Sides[Tensor], eps: float, weights: Sides[Weight]
    ) -> Tensor:
        return self._each(x, lambda rows, side: reference.norm_gated(rows, gains[side], eps, weights[side]))

    def dual_linear_add(self, inner: Tensor, split: Split, weights: Sides[Weight], residual: Tensor) -> Tensor:
        return residual + self._each(inner, lambda rows, side: reference.linear(rows, weights[side]))

    def _each(self, x: Tensor, one: Callable[[Tensor, int], Tensor]) -> Tensor:
        flat = x.flatten(0, 1)
        parts = [one(flat[index], side) for side, index in enumerate(self)]
        out = parts[0].new_zeros(len(flat), parts[0].shape[1])
        for index, part in zip(self, parts, strict=True):
            out[index] = part
        return out.view(*x.shape[:2], -1)
