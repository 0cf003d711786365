"""Every tensor name and shape of a published folder, derived from its config file alone.

Random checkpoints are written from this table, and a test compares it with the published lists, so that a wrong name
shows up here and not as a puzzling load error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sonant.models.synthetic_tensors import Entry, Shape, linear
from sonant.models.voxcpm2.config import VoxCPM2Config

Raw = Mapping[str, Any]

KERNEL = 7
UNITS = 3  # residual units in each block of the codec


@dataclass(frozen=True)
class _Stack:
    """The layers of one of the four parts: all are like the language model's, with their own widths."""

    name: str
    hidden: int
    inner: int
    heads: int
    layers: int
    head_dim: int


def model_shapes(config: VoxCPM2Config) -> dict[str, Shape]:
    """What `model.safetensors` holds."""
    hidden, feat, flow = config.lm.hidden_size, config.feat_dim, "feat_decoder.estimator"
    local, width = config.encoder.hidden_dim, config.dit.hidden_dim
    entries: list[Entry] = [("base_lm.embed_tokens.weight", (config.lm.vocab_size, hidden))]
    for stack in _stacks(config):
        entries += _layers(stack, config.lm.num_key_value_heads)
    for mlp in ("time_mlp.linear_1", "time_mlp.linear_2", "delta_time_mlp.linear_1", "delta_time_mlp.linear_2"):
        entries += linear(f"{flow}.{mlp}", width, width)
    entries += [
        ("feat_encoder.special_token", (1, 1, 1, local)),
        *linear("feat_encoder.in_proj", local, feat),
        *linear(f"{flow}.in_proj", width, feat),
        *linear(f"{flow}.cond_proj", width, feat),
        *linear(f"{flow}.out_proj", feat, width),
        *linear("fsq_layer.in_proj", config.quantizer_dim, hidden),
        *linear("fsq_layer.out_proj", hidden, config.quantizer_dim),
        *linear("enc_to_lm_proj", hidden, local),
        *linear("lm_to_dit_proj", width, hidden),
        *linear("res_to_dit_proj", width, hidden),
        *linear("fusion_concat_proj", hidden, 2 * hidden),
        *linear("stop_proj", hidden, hidden),
        ("stop_head.weight", (2, hidden)),
    ]
    return dict(entries)


def _stacks(config: VoxCPM2Config) -> Iterator[_Stack]:
    lm, encoder, dit = config.lm, config.encoder, config.dit
    for name, layers in (("base_lm", lm.num_hidden_layers), ("residual_lm", config.residual_layers)):
        yield _Stack(name, lm.hidden_size, lm.intermediate_size, lm.num_attention_heads, layers, lm.kv_channels)
    for name, part in (("feat_encoder.encoder", encoder), ("feat_decoder.estimator.decoder", dit)):
        yield _Stack(name, part.hidden_dim, part.ffn_dim, part.num_heads, part.num_layers, part.kv_channels)


def _layers(stack: _Stack, key_heads: int) -> Iterator[Entry]:
    """`key_heads` is the same for all parts."""
    hidden, inner = stack.hidden, stack.inner
    queries, keys = stack.heads * stack.head_dim, key_heads * stack.head_dim
    for i in range(stack.layers):
        layer = f"{stack.name}.layers.{i}"
        yield f"{layer}.self_attn.q_proj.weight", (queries, hidden)
        yield f"{layer}.self_attn.k_proj.weight", (keys, hidden)
        yield f"{layer}.self_attn.v_proj.weight", (keys, hidden)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, queries)
        yield f"{layer}.mlp.gate_proj.weight", (inner, hidden)
        yield f"{layer}.mlp.up_proj.weight", (inner, hidden)
        yield f"{layer}.mlp.down_proj.weight", (hidden, inner)
        yield f"{layer}.input_layernorm.weight", (hidden,)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
    yield f"{stack.name}.norm.weight", (hidden,)


def vae_shapes(config: Raw) -> dict[str, Shape]:
    """What `audiovae.pth` holds. `config` is the part of config.json that describes it."""
    boundaries = len(config["sr_bin_boundaries"])
    return dict([*_encoder(config), *_decoder(config, boundaries + 1), ("decoder.sr_bin_boundaries", (boundaries,))])


def _encoder(c: Raw) -> Iterator[Entry]:
    channels = c["encoder_dim"]
    yield from _conv("encoder.block.0", channels, 1, KERNEL)
    for i, rate in enumerate(c["encoder_rates"], 1):
        block = f"encoder.block.{i}.block"
        yield from _units(block, channels, first=0)
        yield from _snake(f"{block}.{UNITS}", channels)
        yield from _conv(f"{block}.{UNITS + 1}", 2 * channels, channels, 2 * rate)
        channels *= 2
    for head in ("fc_mu", "fc_logvar"):
        yield from _conv(f"encoder.{head}", c["latent_dim"], channels, 3)


def _decoder(c: Raw, sample_rates: int) -> Iterator[Entry]:
    channels = c["decoder_dim"]
    yield from _conv("decoder.model.0", c["latent_dim"], 1, KERNEL)
    yield from _conv("decoder.model.1", channels, c["latent_dim"], 1)
    for i, rate in enumerate(c["decoder_rates"], 2):
        block = f"decoder.model.{i}.block"
        for what in ("scale", "bias"):
            yield f"decoder.sr_cond_model.{i}.{what}_embed.weight", (sample_rates, channels)
        yield from _snake(f"{block}.0", channels)
        yield f"{block}.1.bias", (channels // 2,)
        yield f"{block}.1.weight_g", (channels, 1, 1)  # transposed: inputs come first, and each has its magnitude
        yield f"{block}.1.weight_v", (channels, channels // 2, 2 * rate)
        channels //= 2
        yield from _units(block, channels, first=2)
    end = len(c["decoder_rates"]) + 2
    yield from _snake(f"decoder.model.{end}", channels)
    yield from _conv(f"decoder.model.{end + 1}", 1, channels, KERNEL)


def _units(block: str, channels: int, first: int) -> Iterator[Entry]:
    for unit in range(first, first + UNITS):
        yield from _snake(f"{block}.{unit}.block.0", channels)
        yield from _conv(f"{block}.{unit}.block.1", channels, 1, KERNEL)  # each channel by itself
        yield from _snake(f"{block}.{unit}.block.2", channels)
        yield from _conv(f"{block}.{unit}.block.3", channels, channels, 1)


def _conv(name: str, outputs: int, inputs: int, kernel: int) -> Iterator[Entry]:
    yield f"{name}.bias", (outputs,)
    yield f"{name}.weight_g", (outputs, 1, 1)
    yield f"{name}.weight_v", (outputs, inputs, kernel)


def _snake(name: str, channels: int) -> Iterator[Entry]:
    yield f"{name}.alpha", (1, channels, 1)
