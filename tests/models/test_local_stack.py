"""A stack over few positions gives what its layers give one after another, and hooks of a layer are called."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sonant.kernels import ops
from sonant.kernels.reference import LocalWeights
from sonant.layers.attention import LocalContext
from sonant.layers.local_stack import FEW_TOKENS, LocalStack
from sonant.layers.transformer import DecoderLayer, StackShape, quantize_projections

SHAPE = StackShape(32, 48, layers=3, heads=4, kv_heads=2, head_dim=8, eps=1e-5, rope_theta=1e4, qk_norm=False)


@pytest.fixture
def stack() -> LocalStack:
    torch.manual_seed(1)
    return LocalStack(SHAPE)


def one_by_one(stack: LocalStack, tokens: torch.Tensor) -> torch.Tensor:
    cos, sin = stack.rotations_at(range(tokens.shape[1]), tokens.dtype)
    for layer in stack.layers:
        assert isinstance(layer, DecoderLayer)
        tokens = DecoderLayer.forward(layer, tokens, cos, sin, LocalContext())  # as in any other decoder
    return tokens


@pytest.mark.parametrize("sequences", [2, 1 + FEW_TOKENS // 5])
@torch.inference_mode()
def test_few_tokens_and_many_pass_through_the_same_layers(stack: LocalStack, sequences: int) -> None:
    tokens = torch.randn(sequences, 5, 32)
    expected = one_by_one(stack, tokens.clone())
    torch.testing.assert_close(stack.through(tokens.clone()), expected)
    torch.testing.assert_close(stack.over(tokens.clone()), stack.norm(expected))


@pytest.mark.parametrize("sequences", [2, 1 + FEW_TOKENS // 5])
@torch.inference_mode()
def test_who_brings_a_layers_weights_is_told_before_it_and_after_it(stack: LocalStack, sequences: int) -> None:
    """With hooks like those of engine/weight_lane.py, which may be on all layers or on some."""
    tokens = torch.randn(sequences, 5, 32)
    told: list[int] = []
    expected = stack.through(tokens.clone())
    for n in (1, 2):
        layer = stack.layers[n]
        away = layer.mlp.down_proj.weight.clone()
        layer.mlp.down_proj.weight.zero_()

        def before(layer: nn.Module, _: object, n: int = n, away: torch.Tensor = away) -> None:
            told.append(n)
            layer.mlp.down_proj.weight.copy_(away)

        def after(layer: nn.Module, _: object, __: object, n: int = n) -> None:
            told.append(-n)
            layer.mlp.down_proj.weight.zero_()

        layer.register_forward_pre_hook(before)
        layer.register_forward_hook(after)
    torch.testing.assert_close(stack.through(tokens.clone()), expected)
    assert told == [1, -1, 2, -2]


@torch.inference_mode()
def test_all_layers_are_one_op_unless_somebody_watches_one(stack: LocalStack, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, sizes = torch.randn(2, 5, 32), list[int]()
    expected = one_by_one(stack, tokens.clone())
    through = ops.local_stack

    def counted(x: torch.Tensor, layers: list[LocalWeights]) -> torch.Tensor:
        sizes.append(len(layers))
        return through(x, layers)

    monkeypatch.setattr(ops, "local_stack", counted)
    torch.testing.assert_close(stack.through(tokens.clone()), expected)
    handle = stack.layers[1].register_forward_pre_hook(lambda *_: None)
    torch.testing.assert_close(stack.through(tokens.clone()), expected)
    handle.remove()
    torch.testing.assert_close(stack.through(tokens.clone()), expected)
    assert sizes == [3, 1, 1, 1, 3]


@pytest.mark.parametrize("sequences", [2, 1 + FEW_TOKENS // 5])
@torch.inference_mode()
def test_quantised_layers_have_their_sums_inside_however_many_rows_there_are(
    stack: LocalStack, sequences: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantize_projections(stack)
    for layer in stack.layers:
        for part in (layer.self_attn.qkv_proj, layer.self_attn.o_proj, layer.mlp.gate_up_proj, layer.mlp.down_proj):
            part.values.copy_(torch.randn(part.values.shape).clamp(-2, 2).to(part.values.dtype))
            part.scale.fill_(0.1)
    tokens = torch.randn(sequences, 5, 32)
    monkeypatch.setattr(LocalStack, "_through_many", None)
    torch.testing.assert_close(stack.through(tokens.clone()), one_by_one(stack, tokens.clone()))
