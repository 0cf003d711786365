"""A stack of layers over few positions, kernel by kernel: norms and sums are inside the products.

Each kernel is told which weight the next one reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

from sonant.kernels.reference import LocalWeights
from sonant.kernels.triton.gemv import linear_add, norm_gated, norm_linear
from sonant.kernels.triton.local_out import local_attention_add


def local_stack(x: Tensor, layers: Sequence[LocalWeights], again: bool = False) -> Tensor:
    for layer, following in pairwise([*layers, layers[0] if again else None]):
        assert layer is not None
        eps, then = layer.heads.eps, None if following is None else following.qkv
        qkv = norm_linear(x, layer.first_gain, eps, layer.qkv, layer.out)
        x = local_attention_add(qkv, layer.heads, layer.out, x, layer.gate_up)
        x = linear_add(norm_gated(x, layer.second_gain, eps, layer.gate_up, layer.down), layer.down, x, then)
    return x
