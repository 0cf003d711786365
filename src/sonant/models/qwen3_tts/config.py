"""The checkpoint's own JSON files as frozen dataclasses.

Nothing here has a default that the published files decide: a missing key is an error that names it, because
the official config classes' defaults are not the released values. Keys we do not use are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self

from sonant.errors import BadSampling, CheckpointError
from sonant.models.qwen3_tts.knobs import with_defaults
from sonant.sampling import Knob

Kind = Literal["base", "custom_voice", "voice_design"]


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing: a Qwen3-TTS checkpoint folder holds it") from None
    except (ValueError, OSError) as e:
        raise CheckpointError(f"{path} cannot be read as JSON: {e}") from e
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} should hold a JSON object")
    return value


class _FromDict:
    """Builds a dataclass from the keys of a JSON object that it knows."""

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], where: str) -> Self:
        values = {}
        for f in fields(cls):  # type: ignore[arg-type]
            if f.name in raw and raw[f.name] is not None:
                values[f.name] = tuple(raw[f.name]) if isinstance(raw[f.name], list) else raw[f.name]
            elif f.default is MISSING and f.default_factory is MISSING:
                raise CheckpointError(f"{where} lacks {f.name!r}")
        return cls(**values)


@dataclass(frozen=True)
class DecoderStackConfig(_FromDict):
    """A Qwen3-style decoder stack: RMSNorm, grouped-query attention, SwiGLU, rotary positions."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int


@dataclass(frozen=True)
class TalkerConfig(DecoderStackConfig):
    num_code_groups: int
    text_hidden_size: int
    text_vocab_size: int
    codec_bos_id: int
    codec_eos_token_id: int
    codec_pad_id: int
    codec_think_id: int
    codec_nothink_id: int
    codec_think_bos_id: int
    codec_think_eos_id: int
    codec_language_id: dict[str, int]
    spk_id: dict[str, int]
    spk_is_dialect: dict[str, str | bool]


@dataclass(frozen=True)
class SpeakerConfig(_FromDict):
    """ECAPA-TDNN. The published files carry only `enc_dim` and `sample_rate`; the rest is the official default."""

    enc_dim: int
    sample_rate: int
    mel_dim: int = 128
    enc_channels: tuple[int, ...] = (512, 512, 512, 512, 1536)
    enc_kernel_sizes: tuple[int, ...] = (5, 3, 3, 3, 1)
    enc_dilations: tuple[int, ...] = (1, 2, 3, 4, 1)
    enc_attention_channels: int = 128
    enc_res2net_scale: int = 8
    enc_se_channels: int = 128


@dataclass(frozen=True)
class CodecDecoderConfig(_FromDict):
    latent_dim: int
    codebook_dim: int
    codebook_size: int
    decoder_dim: int
    hidden_size: int
    intermediate_size: int
    head_dim: int
    num_attention_heads: int
    num_key_value_heads: int
    num_hidden_layers: int
    num_quantizers: int
    num_semantic_quantizers: int
    rms_norm_eps: float
    rope_theta: float
    sliding_window: int
    upsample_rates: tuple[int, ...]
    upsampling_ratios: tuple[int, ...]


@dataclass(frozen=True)
class CodecEncoderConfig(_FromDict):
    """Mimi's encoder, as transformers names its parts."""

    audio_channels: int
    num_filters: int
    kernel_size: int
    residual_kernel_size: int
    last_kernel_size: int
    num_residual_layers: int
    compress: int
    upsampling_ratios: tuple[int, ...]
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    rope_theta: float
    num_quantizers: int
    num_semantic_quantizers: int
    codebook_size: int
    codebook_dim: int
    vector_quantization_hidden_dimension: int
    dilation_growth_rate: int


@dataclass(frozen=True)
class CodecConfig:
    decoder: CodecDecoderConfig
    encoder: CodecEncoderConfig
    encoder_valid_num_quantizers: int
    sample_rate: int
    samples_per_frame: int

    @classmethod
    def read(cls, folder: Path) -> CodecConfig:
        path = folder / "config.json"
        raw = read_json(path)
        for key in ("decoder_config", "encoder_config", "output_sample_rate", "decode_upsample_rate"):
            if key not in raw:
                raise CheckpointError(f"{path} lacks {key!r}")
        if raw["output_sample_rate"] != raw.get("input_sample_rate", raw["output_sample_rate"]):
            raise CheckpointError(f"{path}: input and output sample rates differ, which Sonant does not support")
        return cls(
            decoder=CodecDecoderConfig.from_dict(raw["decoder_config"], f"{path}: decoder_config"),
            encoder=CodecEncoderConfig.from_dict(raw["encoder_config"], f"{path}: encoder_config"),
            encoder_valid_num_quantizers=raw["encoder_valid_num_quantizers"],
            sample_rate=raw["output_sample_rate"],
            samples_per_frame=raw["decode_upsample_rate"],
        )


@dataclass(frozen=True)
class Qwen3TTSConfig:
    """All that the engine needs to know of one checkpoint folder."""

    kind: Kind
    size: str
    talker: TalkerConfig
    predictor: DecoderStackConfig
    speaker: SpeakerConfig | None
    codec: CodecConfig
    im_start_token_id: int
    im_end_token_id: int
    tts_pad_token_id: int
    tts_bos_token_id: int
    tts_eos_token_id: int
    knobs: tuple[Knob, ...]  # with this checkpoint's defaults
    max_new_tokens: int

    @classmethod
    def read(cls, folder: Path) -> Qwen3TTSConfig:
        path = folder / "config.json"
        raw = read_json(path)
        for key in ("talker_config", "tts_model_type", "tts_model_size"):
            if key not in raw:
                raise CheckpointError(f"{path} lacks {key!r}: is this a Qwen3-TTS checkpoint?")
        kind = raw["tts_model_type"]
        if kind not in ("base", "custom_voice", "voice_design"):
            raise CheckpointError(f"{path}: tts_model_type {kind!r} is none of base, custom_voice, voice_design")
        if raw.get("tokenizer_type", "qwen3_tts_tokenizer_12hz") != "qwen3_tts_tokenizer_12hz":
            raise CheckpointError(f"{path}: only the 12 Hz tokenizer is supported, not {raw['tokenizer_type']!r}")
        talker = raw["talker_config"]
        if "code_predictor_config" not in talker:
            raise CheckpointError(f"{path}: talker_config lacks 'code_predictor_config'")
        speaker = raw.get("speaker_encoder_config")
        if kind == "base" and speaker is None:
            raise CheckpointError(f"{path} lacks 'speaker_encoder_config', which a base checkpoint needs")
        ids = {}
        for f in ("im_start_token_id", "im_end_token_id", "tts_pad_token_id", "tts_bos_token_id", "tts_eos_token_id"):
            if f not in raw:
                raise CheckpointError(f"{path} lacks {f!r}")
            ids[f] = int(raw[f])
        knobs, max_new_tokens = _generation_defaults(folder / "generation_config.json")
        return cls(
            kind=kind,
            size=raw["tts_model_size"],
            talker=TalkerConfig.from_dict(talker, f"{path}: talker_config"),
            predictor=DecoderStackConfig.from_dict(talker["code_predictor_config"], f"{path}: code_predictor_config"),
            speaker=SpeakerConfig.from_dict(speaker, f"{path}: speaker_encoder_config") if speaker else None,
            codec=CodecConfig.read(folder / "speech_tokenizer"),
            knobs=knobs,
            max_new_tokens=max_new_tokens,
            **ids,
        )


def _generation_defaults(path: Path) -> tuple[tuple[Knob, ...], int]:
    """The file's values over the official library's fallbacks, which apply key by key."""
    raw = read_json(path) if path.exists() else {}
    try:
        return with_defaults({k: v for k, v in raw.items() if v is not None}), int(raw.get("max_new_tokens", 2048))
    except BadSampling as e:
        raise CheckpointError(f"{path}: {e}") from e
