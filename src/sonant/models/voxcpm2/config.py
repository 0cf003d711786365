"""config.json of a VoxCPM2 folder: both language models, the local encoder and the flow decoder.

What the file decides has no default here. The codec's own part is read by `vae_config.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sonant import strict
from sonant.errors import CheckpointError
from sonant.layers.rope_scaling import LongRope
from sonant.models.published import MOST, WHOLE_GROUPS, Published, Rule, at_least_one, only, read_json


@dataclass(frozen=True)
class LanguageModelConfig(Published):
    """MiniCPM4. `use_mup` would scale embeddings and residuals. No published checkpoint does, and all say so, since the
    official default is true."""

    rules = (
        only("use_mup", False),
        WHOLE_GROUPS,
        at_least_one("max_position_embeddings"),
        Rule("kv_channels", "an even number", lambda given, _: given % 2 == 0),
    )

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    kv_channels: int  # of a head
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    rope_scaling: dict[str, Any]
    use_mup: bool

    def rope(self, where: str) -> LongRope:
        """One table for all lengths: as officially, `max_position_embeddings` decides which factors apply."""
        kind, original = self.rope_scaling.get("type"), self.rope_scaling.get("original_max_position_embeddings")
        if kind != "longrope" or not isinstance(original, int) or not 2 <= original <= MOST:
            raise CheckpointError(f"{where}: rope_scaling is of type {kind!r}; Sonant supports only 'longrope'")
        key = "long_factor" if self.max_position_embeddings > original else "short_factor"
        given = self.rope_scaling.get(key)
        factors = strict.convert(tuple[float, ...], given, f"{where}: {key}", error=CheckpointError)
        if len(factors) != self.kv_channels // 2 or not all(factor > 0 for factor in factors):
            raise CheckpointError(f"{where}: {key} must be {self.kv_channels // 2} numbers over 0")
        stretch = self.max_position_embeddings / original
        return LongRope(factors, math.sqrt(1 + math.log(stretch) / math.log(original)))


@dataclass(frozen=True)
class LocalConfig(Published):
    """The local encoder, or the flow decoder's estimator: layers like the language model's, of another width."""

    hidden_dim: int
    ffn_dim: int
    num_heads: int
    num_layers: int
    kv_channels: int


@dataclass(frozen=True)
class FlowConfig(Published):
    rules = (only("solver", "euler"),)

    solver: str


@dataclass(frozen=True)
class _File(Published):
    rules = (only("residual_lm_no_rope", True), only("scalar_quantization_scale", 9), at_least_one("patch_size"))

    lm_config: dict[str, Any]
    encoder_config: dict[str, Any]
    dit_config: dict[str, Any]
    audio_vae_config: dict[str, Any]
    patch_size: int
    feat_dim: int
    scalar_quantization_latent_dim: int
    scalar_quantization_scale: int
    residual_lm_num_layers: int
    residual_lm_no_rope: bool
    max_length: int


@dataclass(frozen=True)
class VoxCPM2Config:
    """All that the engine needs to know of one checkpoint folder; the codec's part is not parsed yet."""

    lm: LanguageModelConfig
    rope: LongRope
    encoder: LocalConfig
    dit: LocalConfig
    patch_size: int  # latents of a patch, which is our frame
    feat_dim: int
    quantizer_dim: int
    quantizer_scale: int
    residual_layers: int
    max_positions: int
    vae: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> VoxCPM2Config:
        path = folder / "config.json"
        raw = read_json(path)
        if raw.get("architecture") != "voxcpm2":
            raise CheckpointError(
                f"{path}: this is VoxCPM 0.5B or 1.5, whose language models are joined in another way; "
                "Sonant speaks VoxCPM2"
            )
        file = _File.from_dict(raw, str(path))
        lm = LanguageModelConfig.from_dict(file.lm_config, f"{path}: lm_config")
        dit = f"{path}: dit_config"
        for key in ("mean_mode", "dit_mean_mode"):
            if file.dit_config.get(key):
                raise CheckpointError(f"{dit}: {key} is true; Sonant supports only false")
        FlowConfig.from_dict(file.dit_config.get("cfm_config") or {}, f"{dit}: cfm_config")
        return cls(
            lm=lm,
            rope=lm.rope(f"{path}: lm_config"),
            encoder=LocalConfig.from_dict(file.encoder_config, f"{path}: encoder_config"),
            dit=LocalConfig.from_dict(file.dit_config, dit),
            patch_size=file.patch_size,
            feat_dim=file.feat_dim,
            quantizer_dim=file.scalar_quantization_latent_dim,
            quantizer_scale=file.scalar_quantization_scale,
            residual_layers=file.residual_lm_num_layers,
            max_positions=file.max_length,
            vae=file.audio_vae_config,
        )
