"""Puts a Qwen3-TTS folder together: what the registry calls."""

from __future__ import annotations

from pathlib import Path

import torch

from sonant.config import EngineConfig
from sonant.models.qwen3_tts.checkpoint import load_modules
from sonant.models.qwen3_tts.config import Qwen3TTSConfig
from sonant.models.qwen3_tts.manifest import FRONT_ENDS, Manifest
from sonant.models.qwen3_tts.model import Qwen3TTS
from sonant.models.qwen3_tts.prompt import FrontEnd, PromptBuilder
from sonant.models.qwen3_tts.row_state import Limits
from sonant.models.qwen3_tts.tokenizer import TextTokenizer
from sonant.text.lexicon import Lexicon

_TRAILING_TOKENS = 1024


def front_end_of(folder: Path, manifest: Manifest) -> FrontEnd | None:
    if manifest.text_front_end is None:
        return None
    normalize = FRONT_ENDS[manifest.text_front_end]
    if manifest.lexicon is None:
        return normalize
    lexicon = Lexicon.read(folder / manifest.lexicon)
    return lambda text: lexicon.pronounce(normalize(text))


def load(
    folder: Path, options: EngineConfig, device: torch.device, dtype: torch.dtype, codec_dtype: torch.dtype
) -> Qwen3TTS:
    config, manifest = Qwen3TTSConfig.read(folder), Manifest.read(folder)
    builder = PromptBuilder(config, TextTokenizer(folder), front_end_of(folder, manifest))
    limits = Limits(
        trailing_tokens=_TRAILING_TOKENS,
        ring_frames=2 * options.chunk_frames[-1],
        chunk_frames=options.chunk_frames[-1],
        budget_frames=options.budget_frames,
        budget_frames_per_token=min(options.budget_frames_per_token, manifest.frames_per_token or float("inf")),
        segment_chars=manifest.segment_chars,
    )
    return Qwen3TTS(config, load_modules(folder, config, device, dtype, codec_dtype), builder, limits)
