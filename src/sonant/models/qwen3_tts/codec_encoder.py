"""The codec's encoder: a reference clip becomes the codes that the talker continues from.

Mimi (arXiv 2410.00037): causal convolutions from 24 kHz to 25 Hz, a causal transformer, one more halving to
12.5 Hz, then a semantic quantiser beside a residual chain of acoustic ones. Attribute names are the published
tensor names. Nothing is computed before the weights are loaded, and no result is kept between calls, so the
module can be built on the meta device, and trained.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonant.kernels.reference import convolve, exact_conv
from sonant.models.qwen3_tts.config import MIMI_DOWNSAMPLE, CodecEncoderConfig

_LAYER_SCALE_INIT = 0.01
_USAGE_FLOOR = 1e-5  # a code that was never used has no mean; the same floor as in training


class CausalConv(nn.Module):
    """[B, T, C] → [B, T / stride, C']: padded on the left for causality, on the right only to fill the last stride."""

    def __init__(
        self,
        channels_in: int,
        channels_out: int,
        kernel: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        bias: bool = True,
        pad_mode: str = "constant",
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels_in, channels_out, kernel, stride, dilation=dilation, bias=bias)
        self.left = (kernel - 1) * dilation + 1 - stride
        self.stride = stride
        self.pad_mode = pad_mode

    def forward(self, x: Tensor) -> Tensor:
        right = -x.shape[1] % self.stride
        if self.pad_mode == "constant":
            x = F.pad(x, (0, 0, self.left, right))
        else:
            x = F.pad(x.mT, (self.left, right), mode=self.pad_mode).mT
        y = convolve(x, self.conv.weight, stride=self.stride, dilation=self.conv.dilation[0])
        return y if self.conv.bias is None else y + self.conv.bias


class ResidualUnit(nn.Module):
    def __init__(self, channels: int, hidden: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.ELU(),
            CausalConv(channels, hidden, kernel, dilation=dilation),
            nn.ELU(),
            CausalConv(hidden, channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


class SeanetEncoder(nn.Module):
    """Samples [B, T, audio_channels] → features [B, ceil(T / product of the ratios), hidden_size]."""

    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        channels = config.num_filters
        layers: list[nn.Module] = [CausalConv(config.audio_channels, channels, config.kernel_size)]
        for ratio in reversed(config.upsampling_ratios):
            for depth in range(config.num_residual_layers):
                dilation = config.dilation_growth_rate**depth
                layers.append(
                    ResidualUnit(channels, channels // config.compress, config.residual_kernel_size, dilation)
                )
            layers += [nn.ELU(), CausalConv(channels, 2 * channels, 2 * ratio, stride=ratio)]
            channels *= 2
        layers += [nn.ELU(), CausalConv(channels, config.hidden_size, config.last_kernel_size)]
        self.layers = nn.Sequential(*layers)

    def forward(self, samples: Tensor) -> Tensor:
        return self.layers(samples)


class Attention(nn.Module):
    """Causal over the whole clip: the official encoder does not apply its config's sliding window."""

    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        query_width = config.num_attention_heads * config.head_dim
        key_width = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query_width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, key_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, key_width, bias=False)
        self.o_proj = nn.Linear(query_width, config.hidden_size, bias=False)
        self.grouped = key_width != query_width

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (
            proj(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = F.scaled_dot_product_attention(
            _rotate(q, cos, sin), _rotate(k, cos, sin), v, is_causal=True, enable_gqa=self.grouped
        )
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class LayerScale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((width,), _LAYER_SCALE_INIT))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden, bias=False)
        self.fc2 = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class TransformerLayer(nn.Module):
    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.self_attn = Attention(config)
        self.mlp = FeedForward(width, config.intermediate_size)
        self.input_layernorm = nn.LayerNorm(width, eps=config.norm_eps)
        self.post_attention_layernorm = nn.LayerNorm(width, eps=config.norm_eps)
        self.self_attn_layer_scale = LayerScale(width)
        self.mlp_layer_scale = LayerScale(width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn_layer_scale(self.self_attn(self.input_layernorm(x), cos, sin))
        return x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))


class Transformer(nn.Module):
    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.rope_theta = config.rope_theta
        self.layers = nn.ModuleList(TransformerLayer(config) for _ in range(config.num_hidden_layers))

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, hidden_size] → the same."""
        # Angles are float32 whatever the module's dtype: otherwise late positions would round to their neighbours.
        pairs = torch.arange(0, self.head_dim, 2, dtype=torch.float32, device=x.device)
        positions = torch.arange(x.shape[1], dtype=torch.float32, device=x.device)
        angles = torch.outer(positions, 1 / self.rope_theta ** (pairs / self.head_dim))
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return x


class Codebook(nn.Module):
    """Vectors kept as running sums and counts, as they were trained."""

    initialized: Tensor  # published with each codebook; a flag for training, not read here
    cluster_usage: Tensor
    embed_sum: Tensor

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.register_buffer("initialized", torch.ones(1))
        self.register_buffer("cluster_usage", torch.ones(size))
        self.register_buffer("embed_sum", torch.zeros(size, width))

    def vectors(self) -> Tensor:
        return self.embed_sum / self.cluster_usage.clamp(min=_USAGE_FLOOR)[:, None]


class VectorQuantizer(nn.Module):
    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.codebook = Codebook(size, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[B, T, width] → the nearest code [B, T] and its vector [B, T, width]."""
        vectors = self.codebook.vectors()
        # cdist, including its square root, so that ties are decided as in the published encoder.
        codes = torch.cdist(x.flatten(0, 1).float(), vectors.float()).argmin(dim=1).view(x.shape[:2])
        return codes, F.embedding(codes, vectors)


class ResidualQuantizer(nn.Module):
    """Each codebook encodes the residual of the ones before it."""

    def __init__(self, config: CodecEncoderConfig, codebooks: int) -> None:
        super().__init__()
        width = config.vector_quantization_hidden_dimension
        self.layers = nn.ModuleList(
            VectorQuantizer(config.codebook_size, config.codebook_dim) for _ in range(codebooks)
        )
        self.input_proj = nn.Conv1d(config.hidden_size, width, 1, bias=False)
        # Encoding does not use it, but the file holds it and every tensor must be accounted for.
        self.output_proj = nn.Conv1d(width, config.hidden_size, 1, bias=False)

    def encode(self, latents: Tensor, codebooks: int) -> Tensor:
        """[B, hidden_size, frames] → [B, frames, codebooks]."""
        residual = exact_conv(latents, self.input_proj.weight, stride=(1,), dilation=(1,)).mT
        chosen = []
        for layer in self.layers[:codebooks]:
            codes, vectors = layer(residual)
            residual = residual - vectors
            chosen.append(codes)
        return torch.stack(chosen, dim=-1)


class SplitQuantizer(nn.Module):
    """Semantic and acoustic codes, both from the latents themselves rather than one from the other's residual."""

    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        self.semantic = config.num_semantic_quantizers
        self.semantic_residual_vector_quantizer = ResidualQuantizer(config, self.semantic)
        self.acoustic_residual_vector_quantizer = ResidualQuantizer(config, config.num_quantizers - self.semantic)

    def encode(self, latents: Tensor, codebooks: int) -> Tensor:
        semantic = self.semantic_residual_vector_quantizer.encode(latents, self.semantic)
        acoustic = self.acoustic_residual_vector_quantizer.encode(latents, codebooks - self.semantic)
        return torch.cat([semantic, acoustic], dim=-1)


class CodecEncoder(nn.Module):
    """`codebooks` is how many of the published quantisers the talker uses; the rest are not computed."""

    def __init__(self, config: CodecEncoderConfig, codebooks: int) -> None:
        super().__init__()
        if not config.num_semantic_quantizers < codebooks <= config.num_quantizers:
            raise ValueError(f"{codebooks} codebooks asked of {config.num_quantizers}")
        self.codebooks = codebooks
        self.samples_per_frame = config.samples_per_frame
        self.encoder = SeanetEncoder(config)
        self.encoder_transformer = Transformer(config)
        self.downsample = CausalConv(
            config.hidden_size,
            config.hidden_size,
            2 * MIMI_DOWNSAMPLE,
            stride=MIMI_DOWNSAMPLE,
            bias=False,
            pad_mode="replicate",
        )
        self.quantizer = SplitQuantizer(config)

    def forward(self, samples: Tensor) -> Tensor:
        """[B, T] → latents [B, hidden_size, ceil(T / samples_per_frame)], before quantising."""
        features = self.encoder(samples[..., None])
        return self.downsample(self.encoder_transformer(features)).mT

    @torch.no_grad()
    def encode(self, samples: Tensor) -> Tensor:
        """[T] at 24 kHz → codes [ceil(T / samples_per_frame), codebooks], int64."""
        weight = self.downsample.conv.weight
        latents = self(samples.to(weight.device, weight.dtype)[None])
        return self.quantizer.encode(latents, self.codebooks)[0]
