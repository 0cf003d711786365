"""Puts a Qwen3-TTS folder together: what the registry calls.

A folder of our own making may hold a `sonant.json`, which says how its voice wants its text. Published folders
have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType

import torch

from sonant.config import EngineConfig
from sonant.errors import CheckpointError
from sonant.models.budget import Budget
from sonant.models.qwen3_tts.checkpoint import load_modules
from sonant.models.qwen3_tts.config import Qwen3TTSConfig, read_json
from sonant.models.qwen3_tts.model import Qwen3TTS
from sonant.models.qwen3_tts.prompt import FrontEnd, PromptBuilder
from sonant.models.qwen3_tts.row_state import Limits
from sonant.models.qwen3_tts.tokenizer import TextTokenizer
from sonant.text.lexicon import Lexicon
from sonant.text.normalize import normalize_english

_TRAILING_TOKENS = 1024
_BUDGET = Budget(base_s=4.0, s_per_token=0.96)
FRONT_ENDS: Mapping[str, FrontEnd] = MappingProxyType({"english": normalize_english})


@dataclass(frozen=True)
class Manifest:
    """`sonant.json`. All of it is optional."""

    name: str | None = None
    license: str | None = None
    text_front_end: str | None = None
    lexicon: str | None = None  # a file beside it: how words sound, for what the front end made
    # The runaway guard for a voice whose tokens are shorter than the published ones: characters, say.
    frames_per_token: float | None = None
    segment_chars: int | None = None  # longer texts are cut at sentence ends: it was taught none

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        path = folder / "sonant.json"
        if not path.exists():
            return cls()
        raw = read_json(path)
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(raw) - known):
            raise CheckpointError(f"{path}: unknown key {unknown[0]!r}; it may hold {', '.join(sorted(known))}")
        for key in ("name", "license", "text_front_end", "lexicon"):
            if not isinstance(raw.get(key), str | None):
                raise CheckpointError(f"{path}: {key} must be a string, not {raw[key]!r}")
        frames = raw.get("frames_per_token", 1)
        if isinstance(frames, bool) or not isinstance(frames, int | float) or not 0 < frames <= 100:
            raise CheckpointError(f"{path}: frames_per_token must be a number from 0 to 100, not {frames!r}")
        chars = raw.get("segment_chars", 100)
        if isinstance(chars, bool) or not isinstance(chars, int) or chars < 20:
            raise CheckpointError(f"{path}: segment_chars must be a whole number from 20 on, not {chars!r}")
        manifest = cls(**raw)
        if manifest.text_front_end not in (None, *FRONT_ENDS):
            raise CheckpointError(
                f"{path}: no text_front_end {manifest.text_front_end!r}; this Sonant has {', '.join(FRONT_ENDS)}"
            )
        if manifest.lexicon is not None and (
            manifest.text_front_end is None or Path(manifest.lexicon).name != manifest.lexicon
        ):
            raise CheckpointError(f"{path}: lexicon must name a file beside it and needs a text_front_end")
        return manifest


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
    frame_s = config.codec.samples_per_frame / config.codec.sample_rate
    limits = Limits(
        sizes=options.frame_sizes(frame_s),
        trailing_tokens=_TRAILING_TOKENS,
        budget=_budget(options, manifest, frame_s),
        segment_chars=manifest.segment_chars,
    )
    return Qwen3TTS(config, load_modules(folder, config, device, dtype, codec_dtype), builder, limits)


def _budget(options: EngineConfig, manifest: Manifest, frame_s: float) -> Budget:
    per_token_s = _BUDGET.s_per_token if options.budget_s_per_token is None else options.budget_s_per_token
    if manifest.frames_per_token is not None:
        per_token_s = min(per_token_s, manifest.frames_per_token * frame_s)
    return Budget(_BUDGET.base_s if options.budget_s is None else options.budget_s, per_token_s)
