"""Scripts for a GPU (tests/gpu_*.py) put things in the place of ours, which must take the calls that ours get."""

from __future__ import annotations

import pytest
import torch

from kernels.against import close, random
from sonant.kernels import reference
from sonant.kernels.gpu import Gpu, planning_for
from sonant.kernels.reference import Heads

pytest.importorskip("triton")
import gpu_layer
from sonant.kernels.triton import gemv, scaled_product

pytestmark = pytest.mark.usefixtures("no_gradients")


@pytest.mark.parametrize("way", gpu_layer.folding([]))
def test_products_take_every_way_of_gpu_layer(way: str) -> None:
    x, gain, weight = random(96, 1, 64), torch.ones(64), random(64, 64, seed=1)
    expected = reference.norm_gated(x, gain, 1e-6, weight)
    with gpu_layer.patched(gpu_layer.folding([])[way]):
        for folded in (False, True):
            close(gemv.norm_gated(x, gain, 1e-6, weight, folded), expected, torch.float32)


def test_in_gpu_layer_widened_means_that_attention_hands_on_sixteen_bits_too() -> None:
    qkv, turns = (torch.empty(64, 1, *sizes, dtype=torch.bfloat16, device="meta") for sizes in ((4096,), (1, 128)))
    heads = Heads(None, None, turns, turns, 16, 8, 1e-6, bounded=True)
    handed = []
    for patches in gpu_layer.quantizing().values():
        with planning_for(Gpu("NVIDIA H200", (9, 0))), gpu_layer.patched(patches):
            handed.append(scaled_product.mixed_dtype(qkv, heads))
    assert handed == [torch.float8_e4m3fn, torch.float8_e4m3fn, torch.bfloat16]
