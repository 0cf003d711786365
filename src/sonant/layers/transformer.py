"""The decoder stack that talker, code predictor and codec share: one definition, three configurations.

Parameter names are the published ones; q/k/v and gate/up are fused (see models/weights.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from sonant.kernels import ops
from sonant.layers.attention import Context
from sonant.layers.rope import rope_tables


@dataclass(frozen=True)
class StackShape:
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rope_theta: float
    qk_norm: bool = True
    layer_scale: bool = False


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight, self.eps)

    def of_sum(self, x: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """x + delta, and its norm."""
        return ops.add_rms_norm(x, delta, self.weight, self.eps)


class LayerScale(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


class Attention(nn.Module):
    def __init__(self, shape: StackShape, index: int) -> None:
        super().__init__()
        self.index, self.shape = index, shape
        self.qkv_proj = nn.Linear(shape.hidden, (shape.heads + 2 * shape.kv_heads) * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)
        if shape.qk_norm:
            self.q_norm = RMSNorm(shape.head_dim, shape.eps)
            self.k_norm = RMSNorm(shape.head_dim, shape.eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, context: Context) -> Tensor:
        s = self.shape
        q_weight, k_weight = (self.q_norm.weight, self.k_norm.weight) if s.qk_norm else (None, None)
        q, k, v = ops.qk_rope(self.qkv_proj(x), q_weight, k_weight, cos, sin, s.heads, s.kv_heads, s.eps)
        return self.o_proj(context.attend(self.index, q, k, v).flatten(2))


class MLP(nn.Module):
    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(hidden, 2 * intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(ops.swiglu(self.gate_up_proj(x)))


class DecoderLayer(nn.Module):
    def __init__(self, shape: StackShape, index: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.self_attn = Attention(shape, index)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.mlp = MLP(shape.hidden, shape.intermediate)
        self.self_attn_layer_scale = LayerScale(shape.hidden) if shape.layer_scale else nn.Identity()
        self.mlp_layer_scale = LayerScale(shape.hidden) if shape.layer_scale else nn.Identity()

    def forward(
        self, x: Tensor, normed: Tensor, following: RMSNorm, cos: Tensor, sin: Tensor, context: Context
    ) -> tuple[Tensor, Tensor]:
        """The residual stream and its norm go in and out; `following` is the norm that comes after this layer."""
        x, normed = self.post_attention_layernorm.of_sum(
            x, self.self_attn_layer_scale(self.self_attn(normed, cos, sin, context))
        )
        return following.of_sum(x, self.mlp_layer_scale(self.mlp(normed)))


class DecoderStack(nn.Module):
    """Layers and the final norm. Subclasses add the embeddings that the checkpoint keeps beside them."""

    def __init__(self, shape: StackShape) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.ModuleList(DecoderLayer(shape, i) for i in range(shape.layers))
        self.norm = RMSNorm(shape.hidden, shape.eps)
        self.register_buffer("rope", None, persistent=False)

    def prepare(self, positions: int) -> None:
        """Tabulate the rotations of positions 0 … `positions` - 1, which forward otherwise computes each time."""
        weight = self.norm.weight
        every = torch.arange(positions, device=weight.device)[None]
        cos, sin = rope_tables(every, self.shape.head_dim, self.shape.rope_theta, weight.dtype)
        self.rope = torch.stack([cos[0], sin[0]])

    def forward(self, x: Tensor, positions: Tensor, context: Context) -> Tensor:
        """x [B, T, hidden] at positions [B, T] → hidden states after the final norm."""
        if self.rope is None:
            cos, sin = rope_tables(positions, self.shape.head_dim, self.shape.rope_theta, x.dtype)
        else:
            cos, sin = self.rope[0][positions], self.rope[1][positions]
        layers = [cast(DecoderLayer, layer) for layer in self.layers]
        normed = layers[0].input_layernorm(x)
        for layer, following in zip(layers, [*(after.input_layernorm for after in layers[1:]), self.norm], strict=True):
            x, normed = layer(x, normed, following, cos, sin, context)
        return normed
