"""Every tensor name and shape of the published layout, derived from the config alone.

Random checkpoints are written from this table, and a test compares it with the published lists, so that a
wrong name shows up here and not as a puzzling load error.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from sonant.models.qwen3_tts.config import (
    CodecConfig,
    CodecDecoderConfig,
    CodecEncoderConfig,
    DecoderStackConfig,
    Qwen3TTSConfig,
    SpeakerConfig,
    TalkerConfig,
)
from sonant.models.synthetic_tensors import Entry, Shape, conv, linear

CONVNEXT_KERNEL = 7
CONVNEXT_WIDENING = 4
VOCODER_KERNEL = 7
VOCODER_UNITS = 3  # residual units in each upsampling block


def model_shapes(config: Qwen3TTSConfig) -> dict[str, Shape]:
    """What `model.safetensors` holds: talker, predictor, and for a base checkpoint the speaker encoder."""
    entries = [*_talker(config.talker), *_predictor(config.predictor, config.talker)]
    if config.speaker is not None:
        entries += _speaker(config.speaker)
    return dict(entries)


def codec_shapes(config: CodecConfig) -> dict[str, Shape]:
    """What `speech_tokenizer/model.safetensors` holds."""
    downsample = config.samples_per_frame // prod(config.encoder.upsampling_ratios)
    return dict([*_codec_encoder(config.encoder, downsample), *_codec_decoder(config.decoder)])


def _decoder_layers(prefix: str, c: DecoderStackConfig) -> Iterator[Entry]:
    for i in range(c.num_hidden_layers):
        layer = f"{prefix}.layers.{i}"
        yield from _attention(layer, c)
        yield f"{layer}.self_attn.q_norm.weight", (c.head_dim,)
        yield f"{layer}.self_attn.k_norm.weight", (c.head_dim,)
        yield from _mlp(layer, c)
        yield f"{layer}.input_layernorm.weight", (c.hidden_size,)
        yield f"{layer}.post_attention_layernorm.weight", (c.hidden_size,)
    yield f"{prefix}.norm.weight", (c.hidden_size,)


def _talker(c: TalkerConfig) -> Iterator[Entry]:
    yield from _decoder_layers("talker.model", c)
    yield "talker.model.codec_embedding.weight", (c.vocab_size, c.hidden_size)
    yield "talker.model.text_embedding.weight", (c.text_vocab_size, c.text_hidden_size)
    yield from linear("talker.text_projection.linear_fc1", c.text_hidden_size, c.text_hidden_size)
    yield from linear("talker.text_projection.linear_fc2", c.hidden_size, c.text_hidden_size)
    yield "talker.codec_head.weight", (c.vocab_size, c.hidden_size)


def _predictor(c: DecoderStackConfig, talker: TalkerConfig) -> Iterator[Entry]:
    model = "talker.code_predictor.model"
    yield from _decoder_layers(model, c)
    for group in range(talker.num_code_groups - 1):  # the talker itself draws the first group
        yield f"{model}.codec_embedding.{group}.weight", (c.vocab_size, talker.hidden_size)
        yield f"talker.code_predictor.lm_head.{group}.weight", (c.vocab_size, c.hidden_size)
    if c.hidden_size != talker.hidden_size:  # with equal widths there is no projection
        yield from linear("talker.code_predictor.small_to_mtp_projection", c.hidden_size, talker.hidden_size)


def _speaker(c: SpeakerConfig) -> Iterator[Entry]:
    first, *middle, last = c.enc_channels
    kernels = c.enc_kernel_sizes
    yield from conv("speaker_encoder.blocks.0.conv", first, c.mel_dim, kernels[0])
    before = first
    for i, channels in enumerate(middle, start=1):
        block = f"speaker_encoder.blocks.{i}"
        branch = channels // c.enc_res2net_scale
        yield from conv(f"{block}.tdnn1.conv", channels, before)
        for j in range(c.enc_res2net_scale - 1):  # the first branch passes through unchanged
            yield from conv(f"{block}.res2net_block.blocks.{j}.conv", branch, branch, kernels[i])
        yield from conv(f"{block}.tdnn2.conv", channels, channels)
        yield from conv(f"{block}.se_block.conv1", c.enc_se_channels, channels)
        yield from conv(f"{block}.se_block.conv2", channels, c.enc_se_channels)
        before = channels
    yield from conv("speaker_encoder.mfa.conv", last, sum(middle), kernels[-1])
    yield from conv("speaker_encoder.asp.tdnn.conv", c.enc_attention_channels, 3 * last)
    yield from conv("speaker_encoder.asp.conv", last, c.enc_attention_channels)
    yield from conv("speaker_encoder.fc", c.enc_dim, 2 * last)


def _codec_encoder(c: CodecEncoderConfig, downsample: int) -> Iterator[Entry]:
    # transformers numbers activations too, hence the gaps in the indices
    at, channels = 0, c.num_filters
    yield from conv(f"encoder.encoder.layers.{at}.conv", channels, c.audio_channels, c.kernel_size)
    for ratio in reversed(c.upsampling_ratios):
        narrow = channels // c.compress
        for _ in range(c.num_residual_layers):
            at += 1
            block = f"encoder.encoder.layers.{at}.block"
            yield from conv(f"{block}.1.conv", narrow, channels, c.residual_kernel_size)
            yield from conv(f"{block}.3.conv", channels, narrow)
        at += 2
        yield from conv(f"encoder.encoder.layers.{at}.conv", 2 * channels, channels, 2 * ratio)
        channels *= 2
    yield from conv(f"encoder.encoder.layers.{at + 2}.conv", c.hidden_size, channels, c.last_kernel_size)
    for i in range(c.num_hidden_layers):
        yield from _codec_encoder_layer(f"encoder.encoder_transformer.layers.{i}", c)
    yield "encoder.downsample.conv.weight", (c.hidden_size, c.hidden_size, 2 * downsample)
    acoustic = c.num_quantizers - c.num_semantic_quantizers
    for part, quantizers in (("semantic", c.num_semantic_quantizers), ("acoustic", acoustic)):
        quantizer = f"encoder.quantizer.{part}_residual_vector_quantizer"
        for i in range(quantizers):
            codebook = f"{quantizer}.layers.{i}.codebook"
            yield f"{codebook}.initialized", (1,)
            yield f"{codebook}.cluster_usage", (c.codebook_size,)
            yield f"{codebook}.embed_sum", (c.codebook_size, c.codebook_dim)
        yield f"{quantizer}.input_proj.weight", (c.vector_quantization_hidden_dimension, c.hidden_size, 1)
        yield f"{quantizer}.output_proj.weight", (c.hidden_size, c.vector_quantization_hidden_dimension, 1)


def _codec_encoder_layer(layer: str, c: CodecEncoderConfig) -> Iterator[Entry]:
    queries = c.num_attention_heads * c.head_dim
    keys = c.num_key_value_heads * c.head_dim
    yield f"{layer}.self_attn.q_proj.weight", (queries, c.hidden_size)
    yield f"{layer}.self_attn.k_proj.weight", (keys, c.hidden_size)
    yield f"{layer}.self_attn.v_proj.weight", (keys, c.hidden_size)
    yield f"{layer}.self_attn.o_proj.weight", (c.hidden_size, queries)
    yield f"{layer}.mlp.fc1.weight", (c.intermediate_size, c.hidden_size)
    yield f"{layer}.mlp.fc2.weight", (c.hidden_size, c.intermediate_size)
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield f"{layer}.{norm}.weight", (c.hidden_size,)
        yield f"{layer}.{norm}.bias", (c.hidden_size,)
    yield f"{layer}.self_attn_layer_scale.scale", (c.hidden_size,)
    yield f"{layer}.mlp_layer_scale.scale", (c.hidden_size,)


def _codec_decoder(c: CodecDecoderConfig) -> Iterator[Entry]:
    entry_dim = c.codebook_dim // 2  # codebooks are half as wide as what they are projected to
    rest = c.num_quantizers - c.num_semantic_quantizers
    for part, quantizers in (("rvq_first", c.num_semantic_quantizers), ("rvq_rest", rest)):
        quantizer = f"decoder.quantizer.{part}"
        yield f"{quantizer}.input_proj.weight", (entry_dim, c.codebook_dim, 1)
        yield f"{quantizer}.output_proj.weight", (c.codebook_dim, entry_dim, 1)
        for i in range(quantizers):
            yield f"{quantizer}.vq.layers.{i}._codebook.cluster_usage", (c.codebook_size,)
            yield f"{quantizer}.vq.layers.{i}._codebook.embedding_sum", (c.codebook_size, entry_dim)
    yield from conv("decoder.pre_conv.conv", c.latent_dim, c.codebook_dim, 3)
    yield from _codec_transformer(c)
    for i, ratio in enumerate(c.upsampling_ratios):
        yield from conv(f"decoder.upsample.{i}.0.conv", c.latent_dim, c.latent_dim, ratio)
        yield from _convnext(f"decoder.upsample.{i}.1", c.latent_dim)
    yield from _vocoder(c)


def _codec_transformer(c: CodecDecoderConfig) -> Iterator[Entry]:
    prefix = "decoder.pre_transformer"
    for i in range(c.num_hidden_layers):
        layer = f"{prefix}.layers.{i}"
        yield from _attention(layer, c)
        yield from _mlp(layer, c)
        for vector in (
            "input_layernorm.weight",
            "post_attention_layernorm.weight",
            "self_attn_layer_scale.scale",
            "mlp_layer_scale.scale",
        ):
            yield f"{layer}.{vector}", (c.hidden_size,)
    yield f"{prefix}.norm.weight", (c.hidden_size,)
    yield from linear(f"{prefix}.input_proj", c.hidden_size, c.latent_dim)
    yield from linear(f"{prefix}.output_proj", c.latent_dim, c.hidden_size)


def _convnext(block: str, channels: int) -> Iterator[Entry]:
    yield f"{block}.gamma", (channels,)
    yield from conv(f"{block}.dwconv.conv", channels, 1, CONVNEXT_KERNEL)
    yield f"{block}.norm.weight", (channels,)
    yield f"{block}.norm.bias", (channels,)
    yield from linear(f"{block}.pwconv1", CONVNEXT_WIDENING * channels, channels)
    yield from linear(f"{block}.pwconv2", channels, CONVNEXT_WIDENING * channels)


def _vocoder(c: CodecDecoderConfig) -> Iterator[Entry]:
    channels = c.decoder_dim
    yield from conv("decoder.decoder.0.conv", channels, c.latent_dim, VOCODER_KERNEL)
    for i, rate in enumerate(c.upsample_rates, start=1):
        block = f"decoder.decoder.{i}.block"
        yield from _snake(f"{block}.0", channels)
        yield f"{block}.1.conv.weight", (channels, channels // 2, 2 * rate)  # transposed: inputs come first
        channels //= 2
        yield f"{block}.1.conv.bias", (channels,)
        for unit in range(2, 2 + VOCODER_UNITS):
            yield from _snake(f"{block}.{unit}.act1", channels)
            yield from conv(f"{block}.{unit}.conv1.conv", channels, channels, VOCODER_KERNEL)
            yield from _snake(f"{block}.{unit}.act2", channels)
            yield from conv(f"{block}.{unit}.conv2.conv", channels, channels)
    end = len(c.upsample_rates) + 1
    yield from _snake(f"decoder.decoder.{end}", channels)
    yield from conv(f"decoder.decoder.{end + 1}.conv", 1, channels, VOCODER_KERNEL)


def _attention(layer: str, c: DecoderStackConfig | CodecDecoderConfig) -> Iterator[Entry]:
    queries = c.num_attention_heads * c.head_dim
    keys = c.num_key_value_heads * c.head_dim
    yield f"{layer}.self_attn.q_proj.weight", (queries, c.hidden_size)
    yield f"{layer}.self_attn.k_proj.weight", (keys, c.hidden_size)
    yield f"{layer}.self_attn.v_proj.weight", (keys, c.hidden_size)
    yield f"{layer}.self_attn.o_proj.weight", (c.hidden_size, queries)


def _mlp(layer: str, c: DecoderStackConfig | CodecDecoderConfig) -> Iterator[Entry]:
    yield f"{layer}.mlp.gate_proj.weight", (c.intermediate_size, c.hidden_size)
    yield f"{layer}.mlp.up_proj.weight", (c.intermediate_size, c.hidden_size)
    yield f"{layer}.mlp.down_proj.weight", (c.hidden_size, c.intermediate_size)


def _snake(name: str, channels: int) -> Iterator[Entry]:
    yield f"{name}.alpha", (channels,)
    yield f"{name}.beta", (channels,)
