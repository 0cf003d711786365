"""Values scaled so that the outputs of attention fit eight bits: the same model, only where a GPU decodes with FP8."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sonant import EngineConfig
from sonant.kernels import ops, reference
from sonant.kernels.gpu import Gpu, planning_for
from sonant.kernels.reference.quantized import LARGEST
from sonant.layers.attention import FullContext
from sonant.layers.quantized import QuantizedLinear
from sonant.layers.transformer import Attention, DecoderLayer, DecoderStack, StackShape, bound_values
from sonant.layers.transformer import quantize_projections as quantize_all
from sonant.models.registry import load_model

SHAPE = StackShape(64, 48, 2, heads=4, kv_heads=2, head_dim=16, eps=1e-6, rope_theta=1e4)


@pytest.fixture
def stack() -> DecoderStack:
    """A stack with values and gains of very different sizes."""
    torch.manual_seed(0)
    made = DecoderStack(SHAPE).requires_grad_(requires_grad=False)
    quantize_all(made)
    for module in made.modules():
        if isinstance(module, QuantizedLinear):
            drawn = torch.randn(module.values.shape) * torch.logspace(-3, 2, len(module.values))[:, None]
            weight = reference.quantize(drawn)
            module.values.data, module.scale.data = weight.values, weight.scale
    for layer in made.layers:
        assert isinstance(layer, DecoderLayer)
        layer.input_layernorm.weight.normal_(1.0, 0.5)
    return made


def values_of(layer: DecoderLayer, rows: Tensor) -> Tensor:
    norm = layer.input_layernorm
    qkv = ops.norm_linear(rows, norm.weight, norm.eps, layer.self_attn.qkv_proj.weight)
    return qkv[..., (SHAPE.heads + SHAPE.kv_heads) * SHAPE.head_dim :]


@torch.no_grad()
def test_the_stack_computes_the_same(stack: DecoderStack) -> None:
    x, positions = torch.randn(3, 5, SHAPE.hidden), torch.arange(5).expand(3, -1)
    expected = stack(x.clone(), positions, FullContext())
    bound_values(stack)
    torch.testing.assert_close(stack(x.clone(), positions, FullContext()), expected, rtol=2e-3, atol=2e-3)


@torch.no_grad()
def test_no_row_makes_a_value_that_eight_bits_do_not_hold(stack: DecoderStack) -> None:
    """Not even a row parallel to a row of the weight, which gives the largest possible value."""
    bound_values(stack)
    for layer in stack.layers:
        assert isinstance(layer, DecoderLayer)
        lines = layer.self_attn.qkv_proj.weight.dequantized(torch.float32)[-SHAPE.kv_heads * SHAPE.head_dim :]
        along = values_of(layer, lines * layer.input_layernorm.weight).diagonal()
        assert bool((along <= 1.001 * LARGEST).all()) and bool((along > 0.49 * LARGEST).all())
        assert float(values_of(layer, torch.randn(200, SHAPE.hidden)).abs().max()) <= LARGEST


@torch.no_grad()
def test_a_value_that_is_always_zero_stays_so(stack: DecoderStack) -> None:
    layer = stack.layers[0]
    assert isinstance(layer, DecoderLayer)
    project = layer.self_attn.qkv_proj
    assert isinstance(project, QuantizedLinear)
    project.values.view(torch.uint8)[-1] = 0
    bound_values(stack)
    made = values_of(layer, torch.randn(4, SHAPE.hidden))
    assert bool(torch.isfinite(made).all()) and not made[:, -1].any()


@pytest.mark.parametrize(
    ("dtype", "config", "expected"),
    [
        (torch.bfloat16, EngineConfig(quantize="fp8"), True),
        (torch.bfloat16, EngineConfig(), False),
        (torch.float32, EngineConfig(quantize="fp8"), False),
        (torch.bfloat16, EngineConfig(quantize="fp8", gpu_weights="1MiB"), False),  # paged weights are used as stored
    ],
)
def test_which_models_a_gpu_gets_so(
    dtype: torch.dtype, config: EngineConfig, expected: bool, tiny_checkpoints: Mapping[str, Path]
) -> None:
    with planning_for(Gpu("NVIDIA H200", (9, 0))):
        model = load_model(tiny_checkpoints["custom"], config, torch.device("meta"), dtype, dtype)
    assert {m.bounded for m in model.modules.talker.modules() if isinstance(m, Attention)} == {expected}
