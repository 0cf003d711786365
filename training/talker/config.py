"""What a talker training run is made of, and the published config.json that its shape comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sonant.models.qwen3_tts.config import CodecConfig
from sonant.models.qwen3_tts.synthetic.presets import generation_config, model_config
from training.talker.guide import Guide

SPECIAL_CODES = 1024  # the engine and the official code never draw so many top ids, except the stop code
_PUBLISHED_BOOK = 2048  # the published special ids stand above a codebook of this size
_FIRST_SPEAKER = 512
_LANGUAGE, _LANGUAGE_AT = "english", 2
# The official code takes a name that is part of "0b6" for a checkpoint that follows no instructions.
_SIZE = "0b"


@dataclass(frozen=True)
class Stack:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int

    def published(self) -> dict[str, Any]:
        return {
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.inner,
        }


@dataclass(frozen=True)
class TalkerStackShape(Stack):
    text_hidden: int
    rope_theta: float
    positions: int


@dataclass(frozen=True)
class Batch:
    positions: int
    longest: int
    predictor_share: float
    auto_language: float
    lower_case: float
    spelt: float
    held_out: int
    seed: int


@dataclass(frozen=True)
class Noise:
    frames: float
    codes: float
    given: float
    inputs: float
    branches: float


@dataclass(frozen=True)
class Schedule:
    total_minutes: float
    warmup_steps: int
    learning_rate: float
    final_learning_rate: float
    weight_decay: float
    gradient_norm: float
    predictor_weight: float
    predictor_fade: float
    ema: float


@dataclass(frozen=True)
class Voice:
    name: str
    license: str
    shipped: tuple[str, ...]
    frames_per_token: float
    segment_chars: int
    temperature: float
    top_k: int
    repetition_penalty: float
    subtalker_temperature: float
    subtalker_top_k: int
    max_new_tokens: int

    def generation(self) -> dict[str, Any]:
        """generation_config.json: the published keys with this voice's values."""
        names = ("temperature", "top_k", "repetition_penalty", "max_new_tokens")
        names += ("subtalker_temperature", "subtalker_top_k")
        return generation_config() | {n: getattr(self, n) for n in names}


@dataclass(frozen=True)
class TalkerTraining:
    talker: TalkerStackShape
    predictor: Stack
    speakers: dict[str, list[str]]
    batch: Batch
    noise: Noise
    guide: Guide
    schedule: Schedule
    voice: Voice

    def __post_init__(self) -> None:
        labels = [label for names in self.speakers.values() for label in names]
        strangers = [n for n in self.voice.shipped if n not in self.speakers]
        if len(labels) != len(set(labels)) or strangers or not self.voice.shipped:
            raise ValueError(f"speakers: a label may stand once, and {strangers or 'someone'} must be among them")

    @property
    def speaker_of(self) -> Mapping[str, str]:
        """Corpus label → speaker."""
        return {label: name for name, labels in self.speakers.items() for label in labels}

    def published(
        self, codec: CodecConfig, text_ids: Mapping[str, int], text_vocab_size: int, speakers: tuple[str, ...]
    ) -> dict[str, Any]:
        """config.json. Special ids keep their published distance from the codebook's end."""
        raw = model_config("tiny", "custom_voice", text_ids, text_vocab_size)
        book, groups = codec.decoder.codebook_size, codec.decoder.num_quantizers
        shift = book - _PUBLISHED_BOOK
        talker = raw["talker_config"]
        for name in [n for n in talker if n.startswith("codec_") and n != "codec_language_id"]:
            talker[name] += shift
        ids = {name: book + _FIRST_SPEAKER + i for i, name in enumerate(self.speakers)}
        half = self.talker.head_dim // 2
        talker |= self.talker.published() | {
            "vocab_size": book + SPECIAL_CODES,
            "num_code_groups": groups,
            "text_hidden_size": self.talker.text_hidden,
            "rope_theta": self.talker.rope_theta,
            "max_position_embeddings": self.talker.positions,
            # Positions have one axis here, so any three parts of the half will do.
            "rope_scaling": talker["rope_scaling"] | {"mrope_section": [half - 2 * (half // 3), half // 3, half // 3]},
            "codec_language_id": {_LANGUAGE: book + _LANGUAGE_AT},
            "spk_id": {name: ids[name] for name in speakers},
            "spk_is_dialect": dict.fromkeys(speakers, False),
        }
        talker["code_predictor_config"] |= self.predictor.published() | {
            "vocab_size": book,
            "num_code_groups": groups,
            "rope_theta": self.talker.rope_theta,
            "layer_types": ["full_attention"] * self.predictor.layers,
        }
        return raw | {"tts_model_size": _SIZE}
