"""The weights of the codec's encoder that can leave a GPU: clips are few, so they leave first."""

from __future__ import annotations

from sonant.models.higgs_audio_v2.codec_encoder import CodecEncoder
from sonant.models.weight_blocks import WeightBlock, encoder_lane


def encoder_blocks(encoder: CodecEncoder) -> list[WeightBlock]:
    """In the order in which a clip goes through them: acoustic encoder, semantic encoder, quantizer."""
    acoustic, semantic = encoder.acoustic_encoder, encoder.semantic_model
    parts = [
        *acoustic.block,
        acoustic.conv2,
        semantic.feature_extractor,
        semantic.encoder.pos_conv_embed,
        *semantic.encoder.layers,
        encoder.encoder_semantic,
        encoder.quantizer,
    ]
    return encoder_lane(parts, "voice encoder")
