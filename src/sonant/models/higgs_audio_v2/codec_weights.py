"""Opens the codec's files and fills its modules from them.

The codec is published separately from the language model, in two forms: transformers' `model.safetensors`, whose names
are ours, and Boson's `model.pth`, a pickle with names of its own and weight norm not folded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch

from sonant.errors import CheckpointError
from sonant.models.higgs_audio_v2.codec import CodecDecoder
from sonant.models.higgs_audio_v2.codec_config import CodecConfig
from sonant.models.higgs_audio_v2.codec_encoder import CodecEncoder
from sonant.models.higgs_audio_v2.codec_place import TO_FETCH, codec_place, read_codec_config
from sonant.models.higgs_audio_v2.encoder_blocks import encoder_blocks
from sonant.models.weights import (
    HostMemory,
    Naming,
    PickledTensors,
    SafetensorsFile,
    TensorSource,
    allocate,
    load_into,
    open_weights,
    rename_by,
)

_PICKLES = (".pth", ".pt", ".bin")
_LANGUAGE_MODEL = ("model.", "layers.", "embed_tokens.", "audio_decoder_proj.", "audio_lm_head.", "text_lm_head.")

# By our names: what only one of the two modules reads, and what neither reads.
_DECODER = re.compile(r"acoustic_decoder\.|fc2\.")
_ENCODER = re.compile(
    r"acoustic_encoder\.|encoder_semantic\.|semantic_model\.|fc\.|quantizer\.quantizers\.\d+\.project_in\."
)
_UNUSED = re.compile(
    r"decoder_semantic\.|fc1\.|semantic_model\.masked_spec_embed$"
    r"|quantizer\.quantizers\.\d+\.codebook\.(embed_avg|cluster_size|inited)$"  # running sums of training
)

_POSITIONS = "pos_conv_embed.conv."
_NATIVE_RULES = (
    (r"pos_conv_embed\.conv\.weight_g$", f"{_POSITIONS}parametrizations.weight.original0"),
    (r"pos_conv_embed\.conv\.weight_v$", f"{_POSITIONS}parametrizations.weight.original1"),
)
_BOSON_RULES = (
    *_NATIVE_RULES,
    (r"^quantizer\.vq\.layers\.", "quantizer.quantizers."),
    (r"\._codebook\.", ".codebook."),
    (r"^fc_prior\.", "fc."),
    (r"^fc_post1\.", "fc1."),
    (r"^fc_post2\.", "fc2."),
    (r"^((?:en|de)coder_semantic\..*conv[12]?)\.conv\.", r"\1."),
)
_BOSON_DAC = re.compile(r"(encoder\.block|decoder_2\.model)\.(\d+)(?:\.block\.([0-4])(?:\.block\.([0-3]))?)?\.(\w+)")
_UNIT = ("snake1", "conv1", "snake2", "conv2")
_ENCODER_BLOCK = ("res_unit1", "res_unit2", "res_unit3", "snake1", "conv1")
_DECODER_BLOCK = ("snake1", "conv_t1", "res_unit1", "res_unit2", "res_unit3")


@dataclass(frozen=True)
class StoredCodec:
    config: CodecConfig
    source: TensorSource
    naming: Naming

    def not_for(self, module: re.Pattern[str]) -> list[str]:
        """Stored names that are known but not read by one module: `module` matches what only the other one reads."""
        ours = ((stored, self.naming.rename(stored)) for stored in self.source.tensors)
        return [stored for stored, name in ours if module.match(name) or _UNUSED.match(name)]


def load_codec(
    codec: StoredCodec, device: torch.device, codec_dtype: torch.dtype, host: HostMemory | None = None
) -> tuple[CodecDecoder, CodecEncoder]:
    """The decoder, prepared and then rounded to `codec_dtype`, and the encoder, in float32."""
    with torch.device("meta"):
        decoder, encoder = CodecDecoder(codec.config), CodecEncoder(codec.config)
    decoder = allocate(decoder, device, torch.float32)
    load_into(decoder, codec.source, naming=codec.naming, unused=codec.not_for(_ENCODER))
    decoder.prepare(codec_dtype)
    encoder = allocate(encoder, device, torch.float32, host, encoder_blocks(encoder))
    load_into(encoder, codec.source, naming=codec.naming, unused=codec.not_for(_DECODER))
    return decoder, encoder


def open_codec(folder: Path, elsewhere: str | None) -> StoredCodec:
    """The codec of the model in `folder`, or the one at `elsewhere`."""
    place = codec_place(folder, elsewhere)
    config, source = read_codec_config(place), _weights(place)
    return StoredCodec(config, source, _naming(source, len(config.acoustic.upsampling_ratios)))


def _weights(place: Path) -> TensorSource:
    source: TensorSource
    if place.is_file():
        source = PickledTensors(place) if place.suffix in _PICKLES else SafetensorsFile(place)
    elif any((place / name).exists() for name in ("model.safetensors", "model.safetensors.index.json")):
        source = open_weights(place)
        if _is_language_model(source) and (place / "model.pth").exists():
            source = PickledTensors(place / "model.pth")  # the published folder also has a copy of the language model
    elif (place / "model.pth").exists():
        source = PickledTensors(place / "model.pth")
    else:
        raise CheckpointError(f"{place} has neither model.safetensors nor model.pth: fetch {TO_FETCH}")
    if _is_language_model(source):
        raise CheckpointError(f"{source.label} holds the language model, not the codec: fetch {TO_FETCH}")
    return source


def _is_language_model(source: TensorSource) -> bool:
    return any(name.startswith(_LANGUAGE_MODEL) for name in source.tensors)


def _naming(source: TensorSource, blocks: int) -> Naming:
    if not any(name.startswith(("decoder_2.", "quantizer.vq.")) for name in source.tensors):
        return Naming(rename=rename_by(_NATIVE_RULES))
    rename = rename_by(_BOSON_RULES)
    return Naming(rename=lambda name: _dac_name(name, blocks) or rename(name))


def _dac_name(name: str, blocks: int) -> str | None:
    """Our name for a layer of Boson's encoder or decoder: sequences of a convolution, the blocks, a snake and a
    convolution. None: it is in neither."""
    match = _BOSON_DAC.fullmatch(name)
    if match is None:
        return None
    side, level, part, layer, tail = match.groups()
    ours, block = ("acoustic_encoder", _ENCODER_BLOCK) if side[0] == "e" else ("acoustic_decoder", _DECODER_BLOCK)
    if part is not None:
        middle = f"block.{int(level) - 1}.{block[int(part)]}" + (f".{_UNIT[int(layer)]}" if layer is not None else "")
        return f"{ours}.{middle}.{tail}"
    ends = {0: "conv1", blocks + 1: "snake1", blocks + 2: "conv2"}
    return f"{ours}.{ends[int(level)]}.{tail}" if int(level) in ends else None
