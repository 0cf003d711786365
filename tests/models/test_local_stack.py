"""A stack over few positions is what its layers are one after another, and those who watch a layer see it called."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sonant.layers.attention import LocalContext
from sonant.layers.local_stack import FEW_TOKENS, LocalStack
from sonant.layers.transformer import StackShape

SHAPE = StackShape(32, 48, layers=3, heads=4, kv_heads=2, head_dim=8, eps=1e-5, rope_theta=1e4, qk_norm=False)


@pytest.fixture
def stack() -> LocalStack:
    torch.manual_seed(1)
    return LocalStack(SHAPE)


def one_by_one(stack: LocalStack, tokens: torch.Tensor) -> torch.Tensor:
    cos, sin = stack.rotations_at(range(tokens.shape[1]), tokens.dtype)
    for layer in stack.layers:
        tokens = layer(tokens, cos, sin, LocalContext())
    return tokens


@pytest.mark.parametrize("sequences", [2, 1 + FEW_TOKENS // 5])
@torch.inference_mode()
def test_few_tokens_and_many_pass_through_the_same_layers(stack: LocalStack, sequences: int) -> None:
    tokens = torch.randn(sequences, 5, 32)
    expected = one_by_one(stack, tokens.clone())
    torch.testing.assert_close(stack.through(tokens.clone(), again=True), expected)
    torch.testing.assert_close(stack.over(tokens.clone()), stack.norm(expected))


@pytest.mark.parametrize("sequences", [2, 1 + FEW_TOKENS // 5])
@torch.inference_mode()
def test_who_brings_a_layers_weights_is_told_before_it_and_after_it(stack: LocalStack, sequences: int) -> None:
    """As engine/weight_lane.py does, for all layers or for some."""
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
