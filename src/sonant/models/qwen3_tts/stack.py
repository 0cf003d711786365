"""Converts a published config to the shape of its decoder stack; talker, predictor and codec use the same names."""

from __future__ import annotations

from sonant.layers.transformer import StackShape
from sonant.models.qwen3_tts.config import CodecDecoderConfig, DecoderStackConfig


def stack_shape(
    config: DecoderStackConfig | CodecDecoderConfig, *, qk_norm: bool = True, layer_scale: bool = False
) -> StackShape:
    return StackShape(
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        eps=config.rms_norm_eps,
        rope_theta=config.rope_theta,
        qk_norm=qk_norm,
        layer_scale=layer_scale,
    )
