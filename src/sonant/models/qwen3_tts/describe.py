"""Tells what a Qwen3-TTS folder holds and whether it would load, without reading a weight."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sonant.config import EngineConfig
from sonant.models.description import Description, Footprint
from sonant.models.qwen3_tts.config import Qwen3TTSConfig
from sonant.models.qwen3_tts.prompt import PromptBuilder
from sonant.models.qwen3_tts.tokenizer import TextTokenizer

if TYPE_CHECKING:
    import torch


def describe(folder: Path) -> Description:
    config = Qwen3TTSConfig.read(folder)
    builder = PromptBuilder(config, TextTokenizer(folder, read_now=False))
    return Description(
        family="qwen3_tts",
        kind=config.kind,
        size=config.size,
        voices=builder.voices,
        languages=builder.languages,
        clones=config.kind == "base",
        designs=config.kind == "voice_design",
        sample_rate=config.codec.sample_rate,
        frame_rate=config.codec.sample_rate / config.codec.samples_per_frame,
    )


def check(folder: Path, options: EngineConfig, dtype: torch.dtype, codec_dtype: torch.dtype) -> Footprint:
    """Load onto the meta device: every check of a real load is made, and no weight is read."""
    import torch  # imported here, since `describe` does not need it

    from sonant.models.qwen3_tts.load import load

    model = load(folder, options, torch.device("meta"), dtype, codec_dtype)
    model.prompter.builder.tokenizer.read()
    parts = model.modules
    modules = [m for m in (parts.talker, parts.decoder, parts.speaker, parts.encoder) if m is not None]
    tensors = [t for m in modules for t in m.state_dict().values()]
    return Footprint(weight_bytes=sum(t.numel() * t.element_size() for t in tensors), spec=model.spec)
