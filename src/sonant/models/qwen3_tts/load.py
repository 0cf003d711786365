"""Puts a Qwen3-TTS folder together: what the registry calls."""

from __future__ import annotations

from pathlib import Path

import torch

from sonant.config import EngineConfig
from sonant.errors import ConfigError
from sonant.models.qwen3_tts.checkpoint import load_modules
from sonant.models.qwen3_tts.config import Qwen3TTSConfig
from sonant.models.qwen3_tts.manifest import FRONT_ENDS, Manifest
from sonant.models.qwen3_tts.model import Qwen3TTS
from sonant.models.qwen3_tts.prompt import FrontEnd, PromptBuilder
from sonant.models.qwen3_tts.row_state import Limits
from sonant.models.qwen3_tts.tokenizer import TextTokenizer
from sonant.models.spec import Budget
from sonant.text.lexicon import Lexicon

_TRAILING_TOKENS = 1024
_BUDGET = Budget(base_s=4.0, s_per_token=0.96)


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
    if options.codec is not None:
        raise ConfigError("this model's codec is in its own folder; leave --codec out, and SONANT_CODEC")
    config, manifest = Qwen3TTSConfig.read(folder), Manifest.read(folder)
    builder = PromptBuilder(config, TextTokenizer(folder), front_end_of(folder, manifest))
    frame_s = config.codec.samples_per_frame / config.codec.sample_rate
    limits = Limits(
        sizes=options.frame_sizes(frame_s),
        trailing_tokens=_TRAILING_TOKENS,
        budget=_budget(options, manifest, frame_s),
        segment_chars=manifest.segment_chars,
    )
    return Qwen3TTS(config, load_modules(folder, config, device, dtype, codec_dtype), builder, limits)


def _budget(options: EngineConfig, manifest: Manifest, frame_s: float) -> Budget:
    budget = _BUDGET.with_options(options)
    if manifest.frames_per_token is None:
        return budget
    return Budget(budget.base_s, min(budget.s_per_token, manifest.frames_per_token * frame_s))
