"""The contents of a checkpoint's JSON files, for the published sizes and for a tiny one.

Random checkpoints need them: the released weights are never fetched by tests or benchmarks. The numbers are
those of the releases, not the defaults of the official config classes, which differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from sonant.models.qwen3_tts.config import Kind

Size = Literal["tiny", "0.6b", "1.7b"]
Json = dict[str, Any]

LANGUAGES = {
    "chinese": 2055,
    "english": 2050,
    "german": 2053,
    "italian": 2070,
    "portuguese": 2071,
    "spanish": 2054,
    "japanese": 2058,
    "korean": 2064,
    "french": 2061,
    "russian": 2069,
}
DIALECTS = {"beijing_dialect": 2074, "sichuan_dialect": 2062}
SPEAKERS = {
    "serena": 3066,
    "vivian": 3065,
    "uncle_fu": 3010,
    "ryan": 3061,
    "aiden": 2861,
    "ono_anna": 2873,
    "sohee": 2864,
    "eric": 2875,
    "dylan": 2878,
}
SPEAKER_DIALECTS = {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}
CODE_GROUPS = 16
CODE_BOOK_SIZE = 2048
SAMPLE_RATE = 24000
SAMPLES_PER_FRAME = 1920


def model_config(
    size: Size, kind: Kind, text_ids: Mapping[str, int], text_vocab_size: int, code_groups: int = CODE_GROUPS
) -> Json:
    """The root config.json. `text_ids` are the ids of the text tokenizer's added tokens."""
    talker = _talker(size, kind, text_vocab_size, code_groups)
    config: Json = {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "dtype": "float32" if size == "tiny" else "bfloat16",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_type": kind,
        # By this name the official code decides whether a CustomVoice checkpoint takes instructions.
        "tts_model_size": "0b6" if size == "0.6b" or (size == "tiny" and kind == "base") else "1b7",
        "im_start_token_id": text_ids["<|im_start|>"],
        "im_end_token_id": text_ids["<|im_end|>"],
        "tts_pad_token_id": text_ids["<tts_pad>"],
        "tts_bos_token_id": text_ids["<tts_text_bos>"],
        "tts_eos_token_id": text_ids["<tts_text_eod>"],
        "talker_config": talker,
    }
    if kind == "base":
        config["speaker_encoder_config"] = {"enc_dim": talker["hidden_size"], "sample_rate": SAMPLE_RATE}
        if size == "tiny":
            config["speaker_encoder_config"] |= {
                "enc_channels": [32, 32, 32, 32, 96],
                "enc_attention_channels": 16,
                "enc_res2net_scale": 4,
                "enc_se_channels": 16,
            }
    return config


def _talker(size: Size, kind: Kind, text_vocab_size: int, code_groups: int) -> Json:
    custom = kind == "custom_voice"
    width = {
        "tiny": _stack(hidden=64, inner=160, layers=3, heads=4, kv_heads=2, head_dim=32),
        "0.6b": _stack(hidden=1024, inner=3072, layers=28, heads=16, kv_heads=8, head_dim=128),
        "1.7b": _stack(hidden=2048, inner=6144, layers=28, heads=16, kv_heads=8, head_dim=128),
    }[size]
    return {
        "model_type": "qwen3_tts_talker",
        "vocab_size": 3072,
        "max_position_embeddings": 32768,
        **width,
        "rope_scaling": {
            "interleaved": True,
            "mrope_section": [6, 5, 5] if size == "tiny" else [24, 20, 20],
            "rope_type": "default",
            "type": "default",
        },
        "position_id_per_seconds": 13,
        "num_code_groups": code_groups,
        "text_hidden_size": 48 if size == "tiny" else 2048,
        "text_vocab_size": text_vocab_size,
        "codec_pad_id": 2148,
        "codec_bos_id": 2149,
        "codec_eos_token_id": 2150,
        "codec_think_id": 2154,
        "codec_nothink_id": 2155,
        "codec_think_bos_id": 2156,
        "codec_think_eos_id": 2157,
        "codec_language_id": LANGUAGES | (DIALECTS if custom else {}),
        "spk_id": dict(SPEAKERS) if custom else {},
        "spk_is_dialect": {s: SPEAKER_DIALECTS.get(s, False) for s in SPEAKERS} if custom else {},
        "code_predictor_config": _predictor(size, kind, code_groups),
    }


def _predictor(size: Size, kind: Kind, code_groups: int) -> Json:
    if size == "tiny":
        # As wide as the talker for one kind and narrower for the others, so that tests cover both forms.
        hidden = 64 if kind == "base" else 48
        width = _stack(hidden=hidden, inner=96, layers=2, heads=4, kv_heads=2, head_dim=16)
    else:
        width = _stack(hidden=1024, inner=3072, layers=5, heads=16, kv_heads=8, head_dim=128)
    return {
        "model_type": "qwen3_tts_talker_code_predictor",
        "vocab_size": CODE_BOOK_SIZE,
        "max_position_embeddings": 65536,
        **width,
        "rope_scaling": None,
        "num_code_groups": code_groups,
        "layer_types": ["full_attention"] * width["num_hidden_layers"],
        "max_window_layers": 28,
    }


def _stack(*, hidden: int, inner: int, layers: int, heads: int, kv_heads: int, head_dim: int) -> Json:
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0,
        "initializer_range": 0.02,
        "use_cache": True,
        "use_sliding_window": False,
        "sliding_window": None,
    }


def codec_config(size: Size, code_groups: int = CODE_GROUPS) -> Json:
    """speech_tokenizer/config.json; all published sizes share one codec."""
    return {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "model_type": "qwen3_tts_tokenizer_12hz",
        "encoder_valid_num_quantizers": code_groups,
        "input_sample_rate": SAMPLE_RATE,
        "output_sample_rate": SAMPLE_RATE,
        "decode_upsample_rate": SAMPLES_PER_FRAME,
        "encode_downsample_rate": SAMPLES_PER_FRAME,
        "decoder_config": _codec_decoder(code_groups, tiny=size == "tiny"),
        "encoder_config": _codec_encoder(tiny=size == "tiny"),
    }


def _codec_decoder(code_groups: int, *, tiny: bool) -> Json:
    return {
        "latent_dim": 48 if tiny else 1024,
        "codebook_dim": 32 if tiny else 512,
        "codebook_size": CODE_BOOK_SIZE,
        "decoder_dim": 64 if tiny else 1536,
        "hidden_size": 32 if tiny else 512,
        "intermediate_size": 64 if tiny else 1024,
        "head_dim": 16 if tiny else 64,
        "num_attention_heads": 4 if tiny else 16,
        "num_key_value_heads": 4 if tiny else 16,
        "num_hidden_layers": 2 if tiny else 8,
        "sliding_window": 8 if tiny else 72,
        "vector_quantization_hidden_dimension": 32 if tiny else 512,
        "num_quantizers": code_groups,
        "num_semantic_quantizers": 1,
        "semantic_codebook_size": 4096,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000,
        "max_position_embeddings": 8000,
        "layer_scale_initial_scale": 0.01,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
    }


def _codec_encoder(*, tiny: bool) -> Json:
    return {
        "num_filters": 4 if tiny else 64,
        "hidden_size": 32 if tiny else 512,
        "intermediate_size": 64 if tiny else 2048,
        "num_hidden_layers": 2 if tiny else 8,
        "num_attention_heads": 4 if tiny else 8,
        "num_key_value_heads": 4 if tiny else 8,
        "head_dim": 8 if tiny else 64,
        "codebook_dim": 16 if tiny else 256,
        "vector_quantization_hidden_dimension": 16 if tiny else 256,
        "upsample_groups": 32 if tiny else 512,
        "audio_channels": 1,
        "kernel_size": 7,
        "residual_kernel_size": 3,
        "last_kernel_size": 3,
        "num_residual_layers": 1,
        "compress": 2,
        "dilation_growth_rate": 2,
        "upsampling_ratios": [8, 6, 5, 4],
        "num_quantizers": 32,
        "num_semantic_quantizers": 1,
        "codebook_size": CODE_BOOK_SIZE,
        "frame_rate": 12.5,
        "sampling_rate": SAMPLE_RATE,
        "sliding_window": 250,
        "rope_theta": 10000.0,
        "max_position_embeddings": 8000,
        "norm_eps": 1e-5,
        "layer_scale_initial_scale": 0.01,
        "hidden_act": "gelu",
        "pad_mode": "constant",
        "use_causal_conv": True,
        "use_conv_shortcut": False,
    }


def generation_config() -> Json:
    """generation_config.json, the same in every release."""
    return {
        "do_sample": True,
        "repetition_penalty": 1.05,
        "temperature": 0.9,
        "top_p": 1.0,
        "top_k": 50,
        "subtalker_dosample": True,
        "subtalker_temperature": 0.9,
        "subtalker_top_p": 1.0,
        "subtalker_top_k": 50,
        "max_new_tokens": 8192,
    }


def small_files() -> dict[str, Json]:
    """Files that we do not read but the official package does, by their path in the folder."""
    return {
        "preprocessor_config.json": {
            "padding_side": "left",
            "padding_value": 0.0,
            "processor_class": "Qwen3TTSProcessor",
            "return_attention_mask": True,
        },
        "speech_tokenizer/configuration.json": {
            "framework": "pytorch",
            "task": "feature-extraction",
            "allow_remote": True,
        },
        "speech_tokenizer/preprocessor_config.json": {
            "chunk_length_s": None,
            "feature_extractor_type": "EncodecFeatureExtractor",
            "feature_size": 1,
            "overlap": None,
            "padding_side": "right",
            "padding_value": 0.0,
            "return_attention_mask": True,
            "sampling_rate": SAMPLE_RATE,
        },
    }
