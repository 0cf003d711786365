"""What a codec training run is made of: the model's shape, the batches, the schedule and the weights of the losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sonant.models.qwen3_tts.config import CodecDecoderConfig, CodecEncoderConfig
from sonant.models.qwen3_tts.synthetic.presets import codec_config

PHONEMES = 178  # ids that the corpus labels may hold


@dataclass(frozen=True)
class Shape:
    codebooks: int
    codebook_size: int
    entry_dim: int
    encoder_filters: int
    encoder_layers: int
    decoder_dim: int
    latent_dim: int
    decoder_layers: int
    window_frames: int
    heads: int
    head_dim: int
    encoder_inner: int
    decoder_inner: int

    def published(self) -> dict[str, Any]:
        """speech_tokenizer/config.json: the published file's keys and rates, with these sizes."""
        raw = codec_config("tiny")
        width = 2 * self.entry_dim
        raw["encoder_valid_num_quantizers"] = self.codebooks
        attention = {
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "head_dim": self.head_dim,
        }
        quantizers = {"num_quantizers": self.codebooks, "codebook_size": self.codebook_size}
        raw["decoder_config"] |= attention | quantizers | {
            "latent_dim": self.latent_dim,
            "codebook_dim": width,
            "vector_quantization_hidden_dimension": width,
            "decoder_dim": self.decoder_dim,
            "hidden_size": self.latent_dim,
            "intermediate_size": self.decoder_inner,
            "num_hidden_layers": self.decoder_layers,
            "sliding_window": self.window_frames,
        }  # fmt: skip
        raw["encoder_config"] |= attention | quantizers | {
            "num_filters": self.encoder_filters,
            "hidden_size": width,
            "intermediate_size": self.encoder_inner,
            "num_hidden_layers": self.encoder_layers,
            "codebook_dim": self.entry_dim,
            "vector_quantization_hidden_dimension": self.entry_dim,
            "upsample_groups": width,
        }  # fmt: skip
        return raw

    def encoder(self) -> CodecEncoderConfig:
        return CodecEncoderConfig.from_dict(self.published()["encoder_config"], "encoder")

    def decoder(self) -> CodecDecoderConfig:
        return CodecDecoderConfig.from_dict(self.published()["decoder_config"], "decoder")


@dataclass(frozen=True)
class Batch:
    seconds: float
    rows: int
    long_seconds: float
    long_every: int
    adversarial_seconds: float
    adversarial_rows: int
    guessed: float
    seed: int


@dataclass(frozen=True)
class Schedule:
    total_minutes: float
    adversarial_from: float
    frozen_from: float
    warmup_steps: int
    quantize_after: int
    learning_rate: float
    final_learning_rate: float
    discriminator_rate: float
    weight_decay: float
    ema: float


@dataclass(frozen=True)
class Weights:
    mel: float
    stft: float
    commitment: float
    naming: float
    adversarial: float
    features: float


@dataclass(frozen=True)
class Quantizing:
    decay: float
    restart_every: int
    restart_below: float
    full_depth: float
    told: float


@dataclass(frozen=True)
class CodecTraining:
    shape: Shape
    batch: Batch
    schedule: Schedule
    weights: Weights
    quantizer: Quantizing
