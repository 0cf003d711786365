"""Llama with DualFFN: attention is shared, norms and feed-forward networks exist twice, for text and for audio.

A prompt has positions of both kinds (`prefill`). Decoding has rows of codes only (`forward`): nothing of the text's
side is read there, neither its network nor its embedding. The text head is never used, and not loaded.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sonant.kernels import ops
from sonant.kernels.reference import Sides, Split
from sonant.layers.attention import Context
from sonant.layers.embedding import Embedding
from sonant.layers.transformer import MLP, Attention, DecoderStack, RMSNorm, StackShape
from sonant.models.higgs_audio_v2.config import CODEBOOKS, HiggsConfig


class DualPart(nn.Module):
    """Half of a layer's two feed-forward networks, each for its own positions. It is a module, though without weights
    of its own, so that the text's are read during a module's call, as `weight_blocks.py` needs."""

    def __init__(self, layer: DualLayer) -> None:
        super().__init__()
        self._layer = (layer,)  # not registered: the weights are the layer's

    @property
    def layer(self) -> DualLayer:
        return self._layer[0]


class DualWiden(DualPart):
    def forward(self, x: Tensor, split: Split) -> Tensor:
        layer = self.layer
        norms = Sides(layer.post_attention_layernorm.weight, layer.audio_post_attention_layernorm.weight)
        weights = Sides(layer.mlp.gate_up_proj.weight, layer.audio_mlp.gate_up_proj.weight)
        return ops.dual_norm_gated(x, split, norms, layer.eps, weights)


class DualNarrow(DualPart):
    def forward(self, inner: Tensor, split: Split, residual: Tensor) -> Tensor:
        layer = self.layer
        weights = Sides(layer.mlp.down_proj.weight, layer.audio_mlp.down_proj.weight)
        return ops.dual_linear_add(inner, split, weights, residual)


class DualLayer(nn.Module):
    def __init__(self, shape: StackShape, index: int) -> None:
        super().__init__()
        self.self_attn = Attention(shape, index)
        self.input_layernorm, self.audio_input_layernorm = (RMSNorm(shape.hidden, shape.eps) for _ in range(2))
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.audio_post_attention_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.mlp, self.audio_mlp = (MLP(shape.hidden, shape.intermediate) for _ in range(2))
        self.widen, self.narrow = DualWiden(self), DualNarrow(self)
        self.eps = shape.eps

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, context: Context, split: Split | None = None) -> Tensor:
        """Without a split every position is a row of codes; with one each position uses the weights of its own side."""
        if split is not None:
            return self._forward_split(x, cos, sin, context, split)
        mixed = self.self_attn(x, self.audio_input_layernorm, cos, sin, context)
        x = ops.linear_add(mixed, self.self_attn.o_proj.weight, x)
        inner = self.audio_mlp(x, self.audio_post_attention_layernorm)
        return ops.linear_add(inner, self.audio_mlp.down_proj.weight, x)

    def _forward_split(self, x: Tensor, cos: Tensor, sin: Tensor, context: Context, split: Split) -> Tensor:
        norms = Sides(self.input_layernorm.weight, self.audio_input_layernorm.weight)
        qkv = ops.linear(ops.dual_norm(x, split, norms, self.eps), self.self_attn.qkv_proj.weight)
        x = ops.linear_add(self.self_attn.gather(qkv, cos, sin, context), self.self_attn.o_proj.weight, x)
        return self.narrow(self.widen(x, split), split, x)


class AudioEmbedding(nn.Module):
    """Embeds a row of codes as the sum of its codes' vectors."""

    def __init__(self, codebook_size: int, hidden: int) -> None:
        super().__init__()
        self.embed_audio_tokens = Embedding(CODEBOOKS * codebook_size, hidden)
        self.codebook_size = codebook_size
        self.register_buffer("offsets", None, persistent=False)

    def prepare(self) -> None:
        """Make what `forward` needs besides the weights. Call once after loading."""
        first = torch.arange(CODEBOOKS, dtype=torch.int32, device=self.embed_audio_tokens.weight.device)
        self.offsets = first * self.codebook_size

    def forward(self, codes: Tensor) -> Tensor:
        """codes [..., codebooks] → [..., hidden]"""
        assert self.offsets is not None
        return self.embed_audio_tokens(codes + self.offsets).sum(-2)


class DualStack(DecoderStack):
    def __init__(self, config: HiggsConfig) -> None:
        super().__init__(stack_shape(config), DualLayer)
        self.embed_tokens = Embedding(config.llama.vocab_size, config.llama.hidden_size)
        self.embed_audio_tokens = AudioEmbedding(config.codebook_size, config.llama.hidden_size)

    def prepare(self, positions: int) -> None:
        super().prepare(positions)
        self.embed_audio_tokens.prepare()

    def embed_position(self, text: Tensor, codes: Tensor) -> Tensor:
        """The input at positions with text [...] and codes [..., codebooks]; a position whose codes are -1 is text."""
        sound = self.embed_audio_tokens(codes.clamp(min=0))
        return torch.where(codes[..., :1] >= 0, sound, self.embed_tokens(text.clamp(min=0)))

    def prefill(self, x: Tensor, positions: Tensor, context: Context, split: Split) -> None:
        """Write the keys and values of x [B, T, hidden]; the stack's output is not needed."""
        cos, sin = self.rotations(positions, x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin, context, split)


class LanguageModel(nn.Module):
    """Parameter names are those of transformers; there is no text head."""

    def __init__(self, config: HiggsConfig) -> None:
        super().__init__()
        self.model = DualStack(config)
        self.audio_lm_head = nn.Linear(config.llama.hidden_size, CODEBOOKS * config.codebook_size, bias=False)

    def forward(self, codes: Tensor, positions: Tensor, context: Context) -> Tensor:
        """Rows of codes [B, codebooks] at positions [B, 1] → logits [B, codebooks, codebook_size]."""
        x = self.model.embed_audio_tokens(codes)[:, None]
        hidden = self.model(x, positions, context)[:, 0]
        return ops.linear(hidden, self.audio_lm_head.weight).unflatten(1, (CODEBOOKS, -1))

    def step_modules(self) -> list[nn.Module]:
        """The modules whose weights a decode step reads completely."""
        layers = [layer for layer in self.model.layers if isinstance(layer, DualLayer)]
        own = [m for x in layers for m in (x.self_attn, x.audio_mlp)]
        return [*own, self.audio_lm_head]


def stack_shape(config: HiggsConfig) -> StackShape:
    llama = config.llama
    return StackShape(
        hidden=llama.hidden_size,
        intermediate=llama.intermediate_size,
        layers=llama.num_hidden_layers,
        heads=llama.num_attention_heads,
        kv_heads=llama.num_key_value_heads,
        head_dim=llama.head_dim,
        eps=llama.rms_norm_eps,
        rope_theta=llama.rope_theta,
        qk_norm=False,
        rope_scaling=config.rope,
    )
