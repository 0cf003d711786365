"""Loads a Higgs Audio V2 folder and its codec as a model, for the registry."""

from __future__ import annotations

from pathlib import Path

import torch

from sonant.config import EngineConfig
from sonant.models.higgs_audio_v2.codec_weights import load_codec, open_codec
from sonant.models.higgs_audio_v2.config import HiggsConfig
from sonant.models.higgs_audio_v2.language_model import LanguageModel
from sonant.models.higgs_audio_v2.model import HiggsAudioV2, Modules
from sonant.models.higgs_audio_v2.prompter import MAX_POSITIONS, load_prompter
from sonant.models.higgs_audio_v2.weight_blocks import layer_blocks, text_table
from sonant.models.weights import HostMemory, Naming, TensorSource, allocate, load_into, open_weights, rename_by

_BOSONS_NAMES = rename_by(
    (
        (r"^audio_codebook_embeddings\.", "model.embed_audio_tokens.embed_audio_tokens."),
        (r"^(embed_tokens|layers|norm)\.", r"model.\1."),
        (r"^audio_decoder_proj\.audio_lm_head\.", "audio_lm_head."),
    )
)


def load(
    folder: Path,
    options: EngineConfig,
    device: torch.device,
    dtype: torch.dtype,
    codec_dtype: torch.dtype,
    host: HostMemory | None = None,
) -> HiggsAudioV2:
    prompter = load_prompter(folder, options)
    codec, weights = open_codec(folder, options.codec), open_weights(folder)  # errors come before the long part
    decoder, encoder = load_codec(codec, device, codec_dtype, host)
    model = _load_language_model(prompter.config, weights, device, dtype, host, options.quantize)
    sizes = options.frame_sizes(prompter.spec.frame_s, decoder.context_frames)
    return HiggsAudioV2(prompter, Modules(model, decoder, encoder), sizes)


def _load_language_model(
    config: HiggsConfig,
    weights: TensorSource,
    device: torch.device,
    dtype: torch.dtype,
    host: HostMemory | None,
    quantize: str | None,
) -> LanguageModel:
    """Load transformers' names or Boson's. The text head is known and skipped, since inference does not read it."""
    with torch.device("meta"):
        empty = LanguageModel(config)
    model = allocate(empty, device, dtype, host, (*layer_blocks(empty), text_table(empty)), quantize=quantize)
    native = any(name.startswith("model.") for name in weights.tensors)
    if native:  # a converted file may hold the heads under their old names as well
        load_into(model, weights, unused=("text_lm_head.", "audio_decoder_proj."))
    else:
        load_into(model, weights, unused=("audio_decoder_proj.text_lm_head.",), naming=Naming(rename=_BOSONS_NAMES))
    model.model.prepare(MAX_POSITIONS)
    return model
