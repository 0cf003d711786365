"""The config of a VoxCPM2 that only lays out prompts."""

from __future__ import annotations

from sonant.layers.rope_scaling import LongRope
from sonant.models.voxcpm2.config import LanguageModelConfig, LocalConfig, VoxCPM2Config
from sonant.models.voxcpm2.tokenizer import TextTokenizer
from voxcpm2_inputs import FEAT_DIM, PATCH_SIZE


def config_for(tokenizer: TextTokenizer) -> VoxCPM2Config:
    local = LocalConfig(hidden_dim=8, ffn_dim=8, num_heads=2, num_layers=1, kv_channels=4)
    return VoxCPM2Config(
        lm=LanguageModelConfig(
            vocab_size=tokenizer.size, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, kv_channels=4, rms_norm_eps=1e-5, rope_theta=1e4, max_position_embeddings=32768,
            rope_scaling={}, use_mup=False,
        ),
        rope=LongRope((1.0, 1.0), 1.0),
        encoder=local,
        dit=local,
        patch_size=PATCH_SIZE,
        feat_dim=FEAT_DIM,
        quantizer_dim=4,
        quantizer_scale=9,
        residual_layers=1,
        max_positions=8192,
        vae={},
    )  # fmt: skip
