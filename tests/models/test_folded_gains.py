"""Gains of norms folded into the weights behind them: the same model, and only where a GPU decodes in 16 bits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from sonant import EngineConfig
from sonant.kernels import ops, reference
from sonant.kernels.gpu import Gpu, planning_for
from sonant.layers.attention import FullContext, ShortContext
from sonant.layers.transformer import DecoderStack, RMSNorm, StackShape, fold_gains
from sonant.models.qwen3_tts.model import Qwen3TTS
from sonant.models.registry import load_model

H200 = Gpu("NVIDIA H200", (9, 0))
META = torch.device("meta")
SHAPE = StackShape(32, 48, 2, heads=4, kv_heads=2, head_dim=16, eps=1e-6, rope_theta=1e4)


def folded(model: torch.nn.Module) -> list[bool]:
    return [m.folded for name, m in model.named_modules() if isinstance(m, RMSNorm) and name.endswith("layernorm")]


@torch.no_grad()
def test_a_stack_with_folded_gains_computes_the_same() -> None:
    torch.manual_seed(0)
    stack = DecoderStack(SHAPE)
    for module in stack.modules():
        if isinstance(module, RMSNorm):
            module.weight.normal_(1.0, 0.5)
    x, positions = torch.randn(3, 5, 32), torch.arange(5).expand(3, -1)
    cache = torch.zeros(2, 2, 3, 5, 2, 16)
    expected = stack(x.clone(), positions, FullContext())
    fold_gains(stack, heads=True)
    assert all(folded(stack)) and not stack.norm.folded
    assert all(bool((layer.input_layernorm.weight == 1).all()) for layer in stack.layers)
    torch.testing.assert_close(stack(x.clone(), positions, FullContext()), expected, rtol=1e-4, atol=1e-5)
    short = stack.forward_at(x.clone(), range(5), ShortContext(cache, 0))
    torch.testing.assert_close(short, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "config", "expected"),
    [
        (torch.bfloat16, EngineConfig(), {True}),
        (torch.float32, EngineConfig(), {False}),  # parity tests use published weights as they are
        (torch.bfloat16, EngineConfig(quantize="fp8"), {False}),
        (torch.bfloat16, EngineConfig(gpu_weights="1MiB"), {False}),  # paged weights are used as stored
    ],
)
def test_which_models_a_gpu_gets_with_folded_gains(
    dtype: torch.dtype, config: EngineConfig, expected: set[bool], tiny_checkpoints: Mapping[str, Path]
) -> None:
    with planning_for(H200):
        model = load_model(tiny_checkpoints["custom"], config, META, dtype, dtype)
    assert isinstance(model, Qwen3TTS)
    talker = model.modules.talker
    assert set(folded(talker.code_predictor)) == expected
    assert {layer.post_attention_layernorm.folded for layer in talker.model.layers} == expected
    assert not any(layer.input_layernorm.folded for layer in talker.model.layers)


def test_the_norm_is_left_to_attention_only_where_its_kernel_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr("sonant.kernels.triton.gemv.known_tile", lambda *given: None)  # no kernel runs on these
    weight, quantized = torch.empty(4096, 1024, dtype=torch.bfloat16, device=META), reference.quantize(torch.ones(4, 4))
    rows = {n: torch.empty(n, 1, 1024, dtype=torch.bfloat16, device=META) for n in (1, 32, 64, 65)}
    assert ops.unscaled_linear(rows[65], weight) is None  # there is no GPU, not even a planned one
    with planning_for(H200), torch.no_grad():
        left = {n: ops.unscaled_linear(x, weight) is not None for n, x in rows.items()}
        assert ops.unscaled_linear(torch.ones(70, 1, 4, dtype=torch.bfloat16), quantized) is None
    assert left == {1: False, 32: False, 64: True, 65: True}  # by an H200's table of tiles


def test_a_cpu_keeps_its_gains(tiny_checkpoints: Mapping[str, Path]) -> None:
    cpu = torch.device("cpu")
    model = load_model(tiny_checkpoints["custom"], EngineConfig(), cpu, torch.bfloat16, torch.float32)
    assert isinstance(model, Qwen3TTS)
    assert set(folded(model.modules.talker)) == {False}
