"""HuBERT (arXiv 2106.07447) in its base form: a clip's semantic features, 50 frames a second.

Convolutions from 16 kHz, the first with group norm, then a transformer with post-norm and one wide convolution as its
positional embedding. Attribute names are the published tensor names. Values are float32, and so are the products.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonant.kernels.reference import exact_conv
from sonant.models.higgs_audio_v2.codec_config import SemanticConfig


class FeatureLayer(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, *, norm: bool) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, stride, bias=False)
        self.layer_norm = nn.GroupNorm(outputs, outputs) if norm else None

    def forward(self, x: Tensor) -> Tensor:
        x = exact_conv(x, self.conv.weight, stride=self.conv.stride, dilation=(1,))
        return F.gelu(x if self.layer_norm is None else self.layer_norm(x))


class FeatureExtractor(nn.Module):
    def __init__(self, config: SemanticConfig) -> None:
        super().__init__()
        inputs = (1, *config.conv_dim)
        self.conv_layers = nn.ModuleList(
            FeatureLayer(inputs[i], config.conv_dim[i], config.conv_kernel[i], config.conv_stride[i], norm=i == 0)
            for i in range(len(config.conv_dim))
        )

    def forward(self, samples: Tensor) -> Tensor:
        """[B, T] → [B, frames, channels]."""
        x = samples[:, None]
        for layer in self.conv_layers:
            x = layer(x)
        return x.mT


class FeatureProjection(nn.Module):
    def __init__(self, config: SemanticConfig) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(config.conv_dim[-1], eps=config.layer_norm_eps)
        self.projection = nn.Linear(config.conv_dim[-1], config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.projection(self.layer_norm(x))


class WeightHalves(nn.Module):
    """Weight norm by tap rather than by row, so it cannot be folded row by row while loading."""

    def __init__(self, outputs: int, inputs: int, taps: int) -> None:
        super().__init__()
        self.original0 = nn.Parameter(torch.ones(1, 1, taps))
        self.original1 = nn.Parameter(torch.zeros(outputs, inputs, taps))

    def forward(self) -> Tensor:
        return self.original1 * (self.original0 / self.original1.norm(dim=(0, 1), keepdim=True))


class PositionalConv(nn.Module):
    def __init__(self, config: SemanticConfig) -> None:
        super().__init__()
        width, self.groups = config.hidden_size, config.num_conv_pos_embedding_groups
        self.taps = config.num_conv_pos_embeddings
        self.bias = nn.Parameter(torch.zeros(width))
        self.parametrizations = nn.ModuleDict({"weight": WeightHalves(width, width // self.groups, self.taps)})

    def forward(self, x: Tensor) -> Tensor:
        """[B, frames, width] → the same shape: an even kernel reaches one frame less to the right."""
        x = F.pad(x.mT, (self.taps // 2, (self.taps - 1) // 2))
        weight = self.parametrizations["weight"]()
        return exact_conv(x, weight, self.bias, stride=(1,), dilation=(1,), groups=self.groups).mT


class PositionalEmbedding(nn.Module):
    def __init__(self, config: SemanticConfig) -> None:
        super().__init__()
        self.conv = PositionalConv(config)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.conv(x))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.q_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        projections = self.q_proj, self.k_proj, self.v_proj
        q, k, v = (project(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for project in projections)
        return self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.intermediate_dense = nn.Linear(width, inner)
        self.output_dense = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.output_dense(F.gelu(self.intermediate_dense(x)))


class Layer(nn.Module):
    def __init__(self, config: SemanticConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.attention = Attention(width, config.num_attention_heads)
        self.layer_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(width, config.intermediate_size)
        self.final_layer_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer_norm(x + self.attention(x))
        return self.final_layer_norm(x + self.feed_forward(x))


class Encoder(nn.Module):
    def __init__(self, config: SemanticConfig) -> None:
        super().__init__()
        self.pos_conv_embed = PositionalEmbedding(config)
        self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))

    def forward(self, x: Tensor) -> list[Tensor]:
        """→ the first layer's input, and each layer's output."""
        states = [self.layer_norm(x + self.pos_conv_embed(x))]
        for layer in self.layers:
            states.append(layer(states[-1]))
        return states


class Hubert(nn.Module):
    def __init__(self, config: SemanticConfig) -> None:
        super().__init__()
        self.config = config
        self.feature_extractor = FeatureExtractor(config)
        self.feature_projection = FeatureProjection(config)
        self.encoder = Encoder(config)

    def frames(self, samples: int) -> int:
        """How many frames so many samples give; 0 or less: none."""
        for kernel, stride in zip(self.config.conv_kernel, self.config.conv_stride, strict=True):
            samples = (samples - kernel) // stride + 1
        return samples

    def forward(self, samples: Tensor) -> Tensor:
        """[B, T] at 16 kHz → [B, frames, hidden_size], the mean over all layers."""
        states = self.encoder(self.feature_projection(self.feature_extractor(samples)))
        return torch.stack(states, dim=1).mean(dim=1)
