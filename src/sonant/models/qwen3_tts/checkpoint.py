"""Makes the modules of a published Qwen3-TTS folder and loads their weights straight to their device and dtype."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from sonant.kernels.cuda import int8_unit
from sonant.kernels.gpu import gpu_of
from sonant.models.qwen3_tts.codec import CodecDecoder
from sonant.models.qwen3_tts.codec_encoder import CodecEncoder
from sonant.models.qwen3_tts.codec_int8 import quantize_units
from sonant.models.qwen3_tts.config import Qwen3TTSConfig
from sonant.models.qwen3_tts.speaker import SpeakerEncoder
from sonant.models.qwen3_tts.talker import Talker
from sonant.models.qwen3_tts.weight_blocks import encoder_blocks, speaker_blocks, talker_blocks, text_table
from sonant.models.weights import HostMemory, allocate, load_into, open_weights


@dataclass(frozen=True)
class Modules:
    talker: Talker
    decoder: CodecDecoder
    speaker: SpeakerEncoder | None  # this and `encoder` are for cloning only
    encoder: CodecEncoder | None


def load_modules(
    folder: Path,
    config: Qwen3TTSConfig,
    device: torch.device,
    dtype: torch.dtype,
    codec_dtype: torch.dtype,
    host: HostMemory | None = None,
    quantize: str | None = None,
) -> Modules:
    """Memory is allocated once, uninitialised, and then filled. Both encoders are in float32, whatever `dtype` is."""
    weights, codec_weights = open_weights(folder), open_weights(folder / "speech_tokenizer")
    with torch.device("meta"):
        talker = Talker(config.talker, config.predictor)
        decoder = CodecDecoder(config.codec.decoder)
        speaker = SpeakerEncoder(config.speaker) if config.speaker else None
        encoder = CodecEncoder(config.codec.encoder, config.codec.encoder_valid_num_quantizers) if speaker else None
    talker = allocate(talker, device, dtype, host, (*talker_blocks(talker), text_table(talker)), quantize=quantize)
    load_into(talker, weights, prefix="talker.", unused=("speaker_encoder.",))
    talker.prepare(config.talker.max_position_embeddings)
    decoder = allocate(decoder, device, codec_dtype)
    load_into(decoder, codec_weights, prefix="decoder.", unused=("encoder.",))
    decoder.prepare()
    if quantize is not None and codec_dtype == torch.bfloat16 and _has_int8(device):
        quantize_units(decoder)
    if speaker is not None and encoder is not None:
        speaker = allocate(speaker, device, torch.float32, host, speaker_blocks(speaker))
        load_into(speaker, weights, prefix="speaker_encoder.", unused=("talker.",))
        encoder = allocate(encoder, device, torch.float32, host, encoder_blocks(encoder))
        load_into(encoder, codec_weights, prefix="encoder.", unused=("decoder.",))
    return Modules(talker, decoder, speaker, encoder)


def _has_int8(device: torch.device) -> bool:
    gpu = gpu_of(device)
    return gpu is not None and int8_unit.obstacle(gpu) is None
