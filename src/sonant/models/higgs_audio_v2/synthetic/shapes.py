"""Every tensor name and shape of transformers' layout, derived from the config files alone.

Random checkpoints are written from this table, and a test compares it with the published lists, so that a wrong name
shows up here and not as a puzzling load error. For their names in Boson's layout see `first_form`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from sonant.models.higgs_audio_v2.config import CODEBOOKS, HiggsConfig
from sonant.models.synthetic_tensors import Entry, Shape, conv, linear

Raw = Mapping[str, Any]

DAC_KERNEL = 7
DAC_UNITS = 3  # residual units in each block


def language_model_shapes(config: HiggsConfig) -> dict[str, Shape]:
    """What `model.safetensors` holds, including the text head, which speech never uses."""
    c = config.llama
    entries: list[Entry] = [("model.embed_tokens.weight", (c.vocab_size, c.hidden_size))]
    for i in range(c.num_hidden_layers):
        entries += _dual_layer(f"model.layers.{i}", config)
    rows = CODEBOOKS * config.codebook_size
    entries += [
        ("model.norm.weight", (c.hidden_size,)),
        ("model.embed_audio_tokens.embed_audio_tokens.weight", (rows, c.hidden_size)),
        ("audio_lm_head.weight", (rows, c.hidden_size)),
        ("text_lm_head.weight", (c.vocab_size, c.hidden_size)),
    ]
    return dict(entries)


def _dual_layer(layer: str, config: HiggsConfig) -> Iterator[Entry]:
    c = config.llama
    queries, keys = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    yield f"{layer}.self_attn.q_proj.weight", (queries, c.hidden_size)
    yield f"{layer}.self_attn.k_proj.weight", (keys, c.hidden_size)
    yield f"{layer}.self_attn.v_proj.weight", (keys, c.hidden_size)
    yield f"{layer}.self_attn.o_proj.weight", (c.hidden_size, queries)
    for side in ("", "audio_"):
        yield f"{layer}.{side}mlp.gate_proj.weight", (c.intermediate_size, c.hidden_size)
        yield f"{layer}.{side}mlp.up_proj.weight", (c.intermediate_size, c.hidden_size)
        yield f"{layer}.{side}mlp.down_proj.weight", (c.hidden_size, c.intermediate_size)
        yield f"{layer}.{side}input_layernorm.weight", (c.hidden_size,)
        yield f"{layer}.{side}post_attention_layernorm.weight", (c.hidden_size,)


def codec_shapes(config: Raw, codebooks: int = CODEBOOKS) -> dict[str, Shape]:
    """What the codec's `model.safetensors` holds. `config` is its config.json in transformers' form."""
    acoustic, semantic = config["acoustic_model_config"], config["semantic_model_config"]
    sound, meaning = acoustic["hidden_size"], semantic["hidden_size"]
    both = sound + meaning
    entries = [
        *_dac_encoder(acoustic),
        *_dac_decoder(acoustic),
        *_semantic_encoder(config, meaning),
        *_semantic_decoder(config, meaning),
        *_hubert(semantic),
        *linear("fc", both, both),
        *linear("fc1", meaning, both),
        *linear("fc2", sound, both),
    ]
    for i in range(codebooks):
        entries += _quantizer(f"quantizer.quantizers.{i}", both, config["codebook_size"], config["codebook_dim"])
    return dict(entries)


def _dac_encoder(c: Raw) -> Iterator[Entry]:
    channels = c["encoder_hidden_size"]
    yield from conv("acoustic_encoder.conv1", channels, 1, DAC_KERNEL)
    for i, ratio in enumerate(c["downsampling_ratios"]):
        block = f"acoustic_encoder.block.{i}"
        yield from _dac_units(block, channels)
        yield from _snake(f"{block}.snake1", channels)
        yield from conv(f"{block}.conv1", 2 * channels, channels, 2 * ratio)
        channels *= 2
    yield from _snake("acoustic_encoder.snake1", channels)
    yield from conv("acoustic_encoder.conv2", c["hidden_size"], channels, 3)


def _dac_decoder(c: Raw) -> Iterator[Entry]:
    channels = c["decoder_hidden_size"]
    yield from conv("acoustic_decoder.conv1", channels, c["hidden_size"], DAC_KERNEL)
    for i, ratio in enumerate(c["upsampling_ratios"]):
        block = f"acoustic_decoder.block.{i}"
        yield from _snake(f"{block}.snake1", channels)
        yield f"{block}.conv_t1.weight", (channels, channels // 2, 2 * ratio)  # transposed: inputs come first
        channels //= 2
        yield f"{block}.conv_t1.bias", (channels,)
        yield from _dac_units(block, channels)
    yield from _snake("acoustic_decoder.snake1", channels)
    yield from conv("acoustic_decoder.conv2", 1, channels, DAC_KERNEL)


def _dac_units(block: str, channels: int) -> Iterator[Entry]:
    for unit in range(1, DAC_UNITS + 1):
        yield from _snake(f"{block}.res_unit{unit}.snake1", channels)
        yield from conv(f"{block}.res_unit{unit}.conv1", channels, channels, DAC_KERNEL)
        yield from _snake(f"{block}.res_unit{unit}.snake2", channels)
        yield from conv(f"{block}.res_unit{unit}.conv2", channels, channels, 1)


def _semantic_encoder(c: Raw, width: int) -> Iterator[Entry]:
    yield "encoder_semantic.conv.weight", (width, width, c["kernel_size"])
    before = width
    for i, (ratio, stride) in enumerate(zip(c["channel_ratios"], c["strides"], strict=True)):
        block, channels = f"encoder_semantic.conv_blocks.{i}", int(width * ratio)
        yield from _semantic_units(block, before, c)
        yield from conv(f"{block}.conv", channels, before, 3 if stride == 1 else 2 * stride)
        before = channels


def _semantic_decoder(c: Raw, width: int) -> Iterator[Entry]:
    widths = [int(width * ratio) for ratio in c["channel_ratios"]] + [width]
    yield "decoder_semantic.conv1.weight", (widths[0], width, c["kernel_size"])
    for i, (before, channels) in enumerate(pairwise(widths)):
        block = f"decoder_semantic.conv_blocks.{i}"
        yield from conv(f"{block}.conv", channels, before, 3)
        yield from _semantic_units(block, channels, c)
    yield "decoder_semantic.conv2.weight", (width, width, c["kernel_size"])


def _semantic_units(block: str, channels: int, c: Raw) -> Iterator[Entry]:
    for unit in range(len(c["block_dilations"])):
        yield f"{block}.res_units.{unit}.conv1.weight", (channels, channels, c["unit_kernel_size"])
        yield f"{block}.res_units.{unit}.conv2.weight", (channels, channels, 1)


def _hubert(c: Raw) -> Iterator[Entry]:
    width, inner, before = c["hidden_size"], c["intermediate_size"], 1
    yield "semantic_model.masked_spec_embed", (width,)
    for i, (channels, kernel) in enumerate(zip(c["conv_dim"], c["conv_kernel"], strict=True)):
        layer = f"semantic_model.feature_extractor.conv_layers.{i}"
        yield f"{layer}.conv.weight", (channels, before, kernel)
        if i == 0:
            yield from _norm(f"{layer}.layer_norm", channels)
        before = channels
    yield from _norm("semantic_model.feature_projection.layer_norm", before)
    yield from linear("semantic_model.feature_projection.projection", width, before)
    positions, taps = "semantic_model.encoder.pos_conv_embed.conv", c["num_conv_pos_embeddings"]
    yield f"{positions}.bias", (width,)
    yield f"{positions}.parametrizations.weight.original0", (1, 1, taps)
    yield f"{positions}.parametrizations.weight.original1", (width, width // c["num_conv_pos_embedding_groups"], taps)
    yield from _norm("semantic_model.encoder.layer_norm", width)
    for i in range(c["num_hidden_layers"]):
        layer = f"semantic_model.encoder.layers.{i}"
        for projection in ("k_proj", "v_proj", "q_proj", "out_proj"):
            yield from linear(f"{layer}.attention.{projection}", width, width)
        yield from _norm(f"{layer}.layer_norm", width)
        yield from linear(f"{layer}.feed_forward.intermediate_dense", inner, width)
        yield from linear(f"{layer}.feed_forward.output_dense", width, inner)
        yield from _norm(f"{layer}.final_layer_norm", width)


def _quantizer(name: str, width: int, codes: int, dim: int) -> Iterator[Entry]:
    yield f"{name}.codebook.inited", (1,)
    yield f"{name}.codebook.cluster_size", (codes,)
    yield f"{name}.codebook.embed", (codes, dim)
    yield f"{name}.codebook.embed_avg", (codes, dim)
    yield from linear(f"{name}.project_in", dim, width)
    yield from linear(f"{name}.project_out", width, dim)


def _norm(name: str, width: int) -> Iterator[Entry]:
    yield f"{name}.weight", (width,)
    yield f"{name}.bias", (width,)


def _snake(name: str, channels: int) -> Iterator[Entry]:
    yield f"{name}.alpha", (1, channels, 1)
