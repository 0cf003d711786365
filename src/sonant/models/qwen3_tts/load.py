"""Puts a Qwen3-TTS folder together: what the registry calls."""

from __future__ import annotations

from pathlib import Path

import torch

from sonant.config import EngineConfig
from sonant.models.qwen3_tts.checkpoint import load_modules
from sonant.models.qwen3_tts.config import Qwen3TTSConfig
from sonant.models.qwen3_tts.fields import Limits
from sonant.models.qwen3_tts.model import Qwen3TTS
from sonant.models.qwen3_tts.prompt import PromptBuilder
from sonant.models.qwen3_tts.tokenizer import TextTokenizer

_TRAILING_TOKENS = 1024


def load(
    folder: Path, options: EngineConfig, device: torch.device, dtype: torch.dtype, codec_dtype: torch.dtype
) -> Qwen3TTS:
    config = Qwen3TTSConfig.read(folder)
    builder = PromptBuilder(config, TextTokenizer(folder))
    limits = Limits(
        trailing_tokens=_TRAILING_TOKENS,
        ring_frames=2 * options.chunk_frames[-1],
        budget_frames=options.budget_frames,
        budget_frames_per_token=options.budget_frames_per_token,
    )
    return Qwen3TTS(config, load_modules(folder, config, device, dtype, codec_dtype), builder, limits)
