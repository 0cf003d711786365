"""A stack of layers over few positions, kernel by kernel: norms and sums are inside the products."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from sonant.kernels.reference import LocalWeights
from sonant.kernels.triton.gemv import linear_add, norm_gated, norm_linear
from sonant.kernels.triton.local_out import local_attention_add


def local_stack(x: Tensor, layers: Sequence[LocalWeights]) -> Tensor:
    for layer in layers:
        eps = layer.heads.eps
        qkv = norm_linear(x, layer.first_gain, eps, layer.qkv)
        x = local_attention_add(qkv, layer.heads, layer.out, x)
        x = linear_add(norm_gated(x, layer.second_gain, eps, layer.gate_up), layer.down, x)
    return x
