"""The contents of config.json, for the published size and for two smaller ones.

Random checkpoints need it: the released weights are never fetched by tests or benchmarks. The smaller models keep what
the algorithm depends on (four latents a patch, 640 samples encoded and 1920 decoded a latent); the mid one keeps the
published heads too, since some kernels depend on their width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sonant.models.voxcpm2.synthetic.rope_factors import FACTORS

Size = Literal["tiny", "mid", "2b"]
Json = dict[str, Any]

PATCH_SIZE = 4
POSITIONS = 32768  # for which RoPE was made


@dataclass(frozen=True)
class Preset:
    """The values in which sizes differ."""

    vocab_size: int
    hidden: int
    inner: int
    layers: int
    residual_layers: int
    heads: int
    head_dim: int
    local_hidden: int  # of the local encoder, and of the flow decoder
    local_inner: int
    local_layers: int
    feat_dim: int
    quantizer_dim: int
    vae_encoder: int  # channels after its first convolution
    vae_decoder: int
    max_length: int
    dtype: str


PRESETS: Mapping[Size, Preset] = {
    "tiny": Preset(
        vocab_size=512, hidden=64, inner=96, layers=3, residual_layers=2, heads=4, head_dim=16,
        local_hidden=32, local_inner=48, local_layers=2, feat_dim=16, quantizer_dim=16,
        vae_encoder=4, vae_decoder=128, max_length=1024, dtype="float32",
    ),
    "mid": Preset(
        vocab_size=512, hidden=512, inner=1024, layers=4, residual_layers=2, heads=16, head_dim=128,
        local_hidden=256, local_inner=512, local_layers=2, feat_dim=64, quantizer_dim=64,
        vae_encoder=16, vae_decoder=256, max_length=1024, dtype="float32",
    ),
    "2b": Preset(
        vocab_size=73448, hidden=2048, inner=6144, layers=28, residual_layers=8, heads=16, head_dim=128,
        local_hidden=1024, local_inner=4096, local_layers=12, feat_dim=64, quantizer_dim=512,
        vae_encoder=128, vae_decoder=2048, max_length=8192, dtype="bfloat16",
    ),
}  # fmt: skip


def model_config(size: Size, vocab_size: int) -> Json:
    """config.json. The keys, and their values at the published size, are those of the release."""
    preset = PRESETS[size]
    local = {
        "hidden_dim": preset.local_hidden,
        "ffn_dim": preset.local_inner,
        "num_heads": preset.heads,
        "num_layers": preset.local_layers,
        "kv_channels": preset.head_dim,
    }
    flow = {"sigma_min": 1e-06, "solver": "euler", "t_scheduler": "log-norm", "inference_cfg_rate": 2.0}
    return {
        "architecture": "voxcpm2",
        "lm_config": _language_model(preset, vocab_size),
        "patch_size": PATCH_SIZE,
        "feat_dim": preset.feat_dim,
        "scalar_quantization_latent_dim": preset.quantizer_dim,
        "scalar_quantization_scale": 9,
        "residual_lm_num_layers": preset.residual_layers,
        "residual_lm_no_rope": True,
        "encoder_config": local,
        "dit_config": {**local, "mean_mode": False, "cfm_config": flow},
        "audio_vae_config": {
            "encoder_dim": preset.vae_encoder,
            "encoder_rates": [2, 5, 8, 8],
            "latent_dim": preset.feat_dim,
            "decoder_dim": preset.vae_decoder,
            "decoder_rates": [8, 6, 5, 2, 2, 2],
            "sr_bin_boundaries": [20000, 30000, 40000],
            "sample_rate": 16000,
            "out_sample_rate": 48000,
        },
        "max_length": preset.max_length,
        "device": "cuda",
        "dtype": preset.dtype,
    }


def _language_model(preset: Preset, vocab_size: int) -> Json:
    factors = FACTORS[:: 2 * len(FACTORS) // preset.head_dim]
    return {
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_size": preset.hidden,
        "intermediate_size": preset.inner,
        "max_position_embeddings": POSITIONS,
        "num_attention_heads": preset.heads,
        "num_hidden_layers": preset.layers,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000,
        "kv_channels": preset.head_dim,
        "rope_scaling": {
            "type": "longrope",
            # The published lists are equal; the tiny model's differ, so that taking the wrong one is noticed.
            "long_factor": list(reversed(factors)) if preset is PRESETS["tiny"] else list(factors),
            "short_factor": list(factors),
            "original_max_position_embeddings": POSITIONS,
        },
        "vocab_size": vocab_size,
        "use_mup": False,
        "scale_emb": 12,
        "dim_model_base": 256,
        "scale_depth": 1.4,
    }
