"""The modules of VoxCPM2 by their published names, all of MiniCPM4's layers.

The base model reads text and patches, and its states are quantised; the residual model adds what that takes away. The
local encoder turns a patch into one position's vector, and the flow decoder's estimator both models' states into a
patch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonant.kernels import ops
from sonant.kernels.reference import FlowEnds
from sonant.layers.embedding import Embedding
from sonant.layers.local_stack import LocalStack
from sonant.layers.transformer import DecoderStack, StackShape
from sonant.models.voxcpm2.config import LocalConfig, VoxCPM2Config


def projected(linear: nn.Linear, x: Tensor) -> Tensor:
    return ops.linear(x, linear.weight, linear.bias)


def language_shape(config: VoxCPM2Config, layers: int, *, rotated: bool) -> StackShape:
    lm = config.lm
    return StackShape(
        hidden=lm.hidden_size,
        intermediate=lm.intermediate_size,
        layers=layers,
        heads=lm.num_attention_heads,
        kv_heads=lm.num_key_value_heads,
        head_dim=lm.kv_channels,
        eps=lm.rms_norm_eps,
        rope_theta=lm.rope_theta if rotated else None,
        qk_norm=False,
        rope_scaling=config.rope,
    )


def local_shape(config: VoxCPM2Config, local: LocalConfig) -> StackShape:
    """Key-value heads and rotations are the language model's."""
    return StackShape(
        hidden=local.hidden_dim,
        intermediate=local.ffn_dim,
        layers=local.num_layers,
        heads=local.num_heads,
        kv_heads=config.lm.num_key_value_heads,
        head_dim=local.kv_channels,
        eps=config.lm.rms_norm_eps,
        rope_theta=config.lm.rope_theta,
        qk_norm=False,
        rope_scaling=config.rope,
    )


class BaseModel(DecoderStack):
    def __init__(self, config: VoxCPM2Config) -> None:
        super().__init__(language_shape(config, config.lm.num_hidden_layers, rotated=True))
        self.embed_tokens = Embedding(config.lm.vocab_size, config.lm.hidden_size)


class LocalEncoder(nn.Module):
    """Encodes a patch of latents as one vector: the result at a learned token before them."""

    def __init__(self, config: VoxCPM2Config) -> None:
        super().__init__()
        hidden = config.encoder.hidden_dim
        self.special_token = nn.Parameter(torch.zeros(1, 1, 1, hidden))
        self.in_proj = nn.Linear(config.feat_dim, hidden)
        self.encoder = LocalStack(local_shape(config, config.encoder))

    def forward(self, patches: Tensor) -> Tensor:
        """[N, patch_size, feat_dim] → [N, hidden]"""
        tokens = projected(self.in_proj, patches.to(self.in_proj.weight.dtype))
        return self.encoder.over(torch.cat([self.special_token[0].expand(len(tokens), -1, -1), tokens], 1))[:, 0]


class TimeEmbedding(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(hidden, hidden)
        self.linear_2 = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(F.silu(self.linear_1(x)))


class Estimator(nn.Module):
    """Estimates a patch's velocity: eleven tokens go through the layers, of which the last ones are the patch. What is
    done before and after the layers is the flow's (flow.py), which joins one evaluation's end to the next one's start.
    """

    def __init__(self, config: VoxCPM2Config) -> None:
        super().__init__()
        hidden = config.dit.hidden_dim
        self.in_proj = nn.Linear(config.feat_dim, hidden)
        self.cond_proj = nn.Linear(config.feat_dim, hidden)
        self.out_proj = nn.Linear(hidden, config.feat_dim)
        self.time_mlp, self.delta_time_mlp = TimeEmbedding(hidden), TimeEmbedding(hidden)
        self.decoder = LocalStack(local_shape(config, config.dit))

    def tokens_of(self, patch: Tensor) -> Tensor:
        """The previous patch [N, patch_size, feat_dim] as tokens."""
        return projected(self.cond_proj, patch.to(self.cond_proj.weight.dtype))

    def ends(self) -> FlowEnds:
        norm, start, end = self.decoder.norm, self.in_proj, self.out_proj
        return FlowEnds(start.weight, start.bias, norm.weight, norm.eps, end.weight, end.bias)


class FlowDecoder(nn.Module):
    def __init__(self, config: VoxCPM2Config) -> None:
        super().__init__()
        self.estimator = Estimator(config)


class Quantizer(nn.Module):
    """Finite scalar quantisation between two projections."""

    def __init__(self, config: VoxCPM2Config) -> None:
        super().__init__()
        self.in_proj = nn.Linear(config.lm.hidden_size, config.quantizer_dim)
        self.out_proj = nn.Linear(config.quantizer_dim, config.lm.hidden_size)
        self.scale = config.quantizer_scale

    def forward(self, x: Tensor) -> Tensor:
        return projected(self.out_proj, torch.round(torch.tanh(projected(self.in_proj, x)) * self.scale) / self.scale)


class VoxCPM2Modules(nn.Module):
    """All but the codec."""

    def __init__(self, config: VoxCPM2Config) -> None:
        super().__init__()
        wide, local, dit = config.lm.hidden_size, config.encoder.hidden_dim, config.dit.hidden_dim
        self.base_lm = BaseModel(config)
        self.residual_lm = DecoderStack(language_shape(config, config.residual_layers, rotated=False))
        self.feat_encoder = LocalEncoder(config)
        self.feat_decoder = FlowDecoder(config)
        self.fsq_layer = Quantizer(config)
        self.enc_to_lm_proj = nn.Linear(local, wide)
        self.lm_to_dit_proj, self.res_to_dit_proj = nn.Linear(wide, dit), nn.Linear(wide, dit)
        self.fusion_concat_proj = nn.Linear(2 * wide, wide)
        self.stop_proj, self.stop_head = nn.Linear(wide, wide), nn.Linear(wide, 2, bias=False)

    def prepare(self, positions: int, patch_size: int) -> None:
        """Tabulate rotations. Call once after loading."""
        self.base_lm.prepare(positions)
        self.residual_lm.prepare(positions)
        self.feat_encoder.encoder.prepare(patch_size + 1)
        self.feat_decoder.estimator.decoder.prepare(2 * patch_size + 3)

    def embed_patches(self, patches: Tensor) -> Tensor:
        """[N, patch_size, feat_dim] → the base model's inputs for these patches, [N, hidden]."""
        return projected(self.enc_to_lm_proj, self.feat_encoder(patches))

    def residual_input(self, state: Tensor, embedded: Tensor) -> Tensor:
        """The residual model's input: the base model's state, joined with its input if that was a patch, or zeros."""
        return projected(self.fusion_concat_proj, torch.cat([state, embedded], -1))

    def flow_prefix(self, state: Tensor, residual: Tensor) -> Tensor:
        """Both models' states [N, hidden] as the estimator's first tokens: [N, 2, dit hidden]."""
        return torch.stack([projected(self.lm_to_dit_proj, state), projected(self.res_to_dit_proj, residual)], 1)

    def stop_logits(self, state: Tensor) -> Tensor:
        """Logits [N, 2]: of going on, and of ending with the patch that is made from this state."""
        return projected(self.stop_head, F.silu(projected(self.stop_proj, state)))
