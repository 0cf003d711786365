"""The checkpoint's own JSON files as frozen dataclasses.

What the published files decide has no default here: a missing key is an error that names it, because the official
config classes' defaults are not the released values. Keys that change nothing are ignored; those that change the
arithmetic in ways that we do not support are refused, see `supported.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sonant import strict
from sonant.errors import BadSampling, CheckpointError
from sonant.models.published import Published, agree, read_json
from sonant.models.qwen3_tts import supported
from sonant.models.qwen3_tts.ids import check_ids
from sonant.models.qwen3_tts.knobs import with_defaults
from sonant.sampling import Knob

Kind = Literal["base", "custom_voice", "voice_design"]
MIMI_DOWNSAMPLE = 2  # from the 25 Hz of the encoder's transformer to the codes' 12.5 Hz


@dataclass(frozen=True)
class DecoderStackConfig(Published):
    """A Qwen3-style decoder stack: RMSNorm, grouped-query attention, SwiGLU, rotary positions."""

    rules = supported.LANGUAGE_MODEL

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
class SpeakerConfig(Published):
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
class CodecDecoderConfig(Published):
    rules = supported.CODEC_DECODER

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

    @property
    def samples_per_frame(self) -> int:
        return math.prod(self.upsample_rates) * math.prod(self.upsampling_ratios)


@dataclass(frozen=True)
class CodecEncoderConfig(Published):
    """Mimi's encoder, as transformers names its parts."""

    rules = supported.CODEC_ENCODER

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

    @property
    def samples_per_frame(self) -> int:
        return MIMI_DOWNSAMPLE * math.prod(self.upsampling_ratios)


@dataclass(frozen=True)
class _CodecFile:
    """speech_tokenizer/config.json, with its two parts not parsed yet."""

    decoder_config: dict[str, Any]
    encoder_config: dict[str, Any]
    encoder_valid_num_quantizers: int
    output_sample_rate: int
    decode_upsample_rate: int
    input_sample_rate: int | None = None
    encode_downsample_rate: int | None = None


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
        file = strict.build(_CodecFile, read_json(path), str(path), error=CheckpointError, lenient=True)
        decoder = CodecDecoderConfig.from_dict(file.decoder_config, f"{path}: decoder_config")
        encoder = CodecEncoderConfig.from_dict(file.encoder_config, f"{path}: encoder_config")
        down = encoder.samples_per_frame if file.encode_downsample_rate is None else file.encode_downsample_rate
        valid = file.encoder_valid_num_quantizers
        rate = file.output_sample_rate if file.input_sample_rate is None else file.input_sample_rate
        # The official code cuts codes and sound by the file's two rates; if those are not the modules' own, it cuts
        # within frames.
        agree(
            str(path),
            ("input_sample_rate", rate, "output_sample_rate", file.output_sample_rate),
            ("decode_upsample_rate", file.decode_upsample_rate, "the decoder's rate", decoder.samples_per_frame),
            ("encode_downsample_rate", down, "the encoder's rate", encoder.samples_per_frame),
            ("encoder_valid_num_quantizers", valid, "num_quantizers", decoder.num_quantizers),
        )
        return cls(
            decoder=decoder,
            encoder=encoder,
            encoder_valid_num_quantizers=valid,
            sample_rate=file.output_sample_rate,
            samples_per_frame=file.decode_upsample_rate,
        )


@dataclass(frozen=True)
class _ModelFile:
    """config.json, with its parts not parsed yet."""

    tts_model_type: Kind
    tts_model_size: str
    talker_config: dict[str, Any]
    im_start_token_id: int
    im_end_token_id: int
    tts_pad_token_id: int
    tts_bos_token_id: int
    tts_eos_token_id: int
    speaker_encoder_config: dict[str, Any] | None = None
    tokenizer_type: Literal["qwen3_tts_tokenizer_12hz"] = "qwen3_tts_tokenizer_12hz"


@dataclass(frozen=True)
class _GenerationFile:
    max_new_tokens: int = 2048  # the official library's fallback


@dataclass(frozen=True)
class Qwen3TTSConfig:
    """All that the engine needs to know of one checkpoint folder."""

    kind: Kind
    size: str
    talker: TalkerConfig
    predictor: DecoderStackConfig
    speaker: SpeakerConfig | None  # for base checkpoints only; in other kinds' files it is ignored
    codec: CodecConfig
    im_start_token_id: int
    im_end_token_id: int
    tts_pad_token_id: int
    tts_bos_token_id: int
    tts_eos_token_id: int
    knobs: tuple[Knob, ...]  # with this checkpoint's defaults
    max_new_tokens: int

    @property
    def instructs(self) -> bool:
        """Whether instructions on how to speak reach the talker. As in the official code, a size that is any substring
        of "0b6" leaves them out; the built-in voice's is one."""
        return self.kind == "voice_design" or (self.kind == "custom_voice" and self.size not in "0b6")

    @classmethod
    def read(cls, folder: Path) -> Qwen3TTSConfig:
        path = folder / "config.json"
        file = strict.build(_ModelFile, read_json(path), str(path), error=CheckpointError, lenient=True)
        talker = TalkerConfig.from_dict(file.talker_config, f"{path}: talker_config")
        predictor = _predictor(file.talker_config, talker, f"{path}: talker_config")
        codec = CodecConfig.read(folder / "speech_tokenizer")
        agree(
            str(folder),
            ("talker_config.num_code_groups", talker.num_code_groups, "num_quantizers", codec.decoder.num_quantizers),
            ("code_predictor_config.vocab_size", predictor.vocab_size, "codebook_size", codec.decoder.codebook_size),
        )
        knobs, max_new_tokens = _generation_defaults(folder / "generation_config.json")
        config = cls(
            kind=file.tts_model_type,
            size=file.tts_model_size,
            talker=talker,
            predictor=predictor,
            speaker=_speaker(file, talker, codec, path) if file.tts_model_type == "base" else None,
            codec=codec,
            im_start_token_id=file.im_start_token_id,
            im_end_token_id=file.im_end_token_id,
            tts_pad_token_id=file.tts_pad_token_id,
            tts_bos_token_id=file.tts_bos_token_id,
            tts_eos_token_id=file.tts_eos_token_id,
            knobs=knobs,
            max_new_tokens=max_new_tokens,
        )
        check_ids(config, str(path))
        return config


def _predictor(talker_file: Mapping[str, Any], talker: TalkerConfig, where: str) -> DecoderStackConfig:
    raw = talker_file.get("code_predictor_config")
    if not isinstance(raw, dict):
        raise CheckpointError(f"{where} lacks 'code_predictor_config'")
    if (groups := raw.get("num_code_groups")) is not None:
        own = "code_predictor_config.num_code_groups"
        agree(where, (own, groups, "num_code_groups", talker.num_code_groups))
    return DecoderStackConfig.from_dict(raw, f"{where}: code_predictor_config")


def _speaker(file: _ModelFile, talker: TalkerConfig, codec: CodecConfig, path: Path) -> SpeakerConfig:
    if file.speaker_encoder_config is None:
        raise CheckpointError(f"{path} lacks 'speaker_encoder_config', which a base checkpoint needs")
    where = f"{path}: speaker_encoder_config"
    speaker = SpeakerConfig.from_dict(file.speaker_encoder_config, where)
    layers = len(speaker.enc_channels)
    agree(
        where,
        ("enc_dim", speaker.enc_dim, "the talker's hidden_size", talker.hidden_size),
        ("sample_rate", speaker.sample_rate, "the codec's", codec.sample_rate),
        ("the number of enc_kernel_sizes", len(speaker.enc_kernel_sizes), "that of enc_channels", layers),
        ("the number of enc_dilations", len(speaker.enc_dilations), "that of enc_channels", layers),
    )
    return speaker


def _generation_defaults(path: Path) -> tuple[tuple[Knob, ...], int]:
    """The file's values over the official library's fallbacks, which apply key by key."""
    raw = {key: value for key, value in (read_json(path) if path.exists() else {}).items() if value is not None}
    most = strict.build(_GenerationFile, raw, str(path), error=CheckpointError, lenient=True)
    if most.max_new_tokens < 1:
        raise CheckpointError(f"{path}: max_new_tokens must be at least 1, not {most.max_new_tokens}")
    try:
        return with_defaults(raw), most.max_new_tokens
    except BadSampling as e:
        raise CheckpointError(f"{path}: {e}") from e
