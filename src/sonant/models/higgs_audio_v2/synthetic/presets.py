"""The contents of a checkpoint's JSON files, in both published forms, for the published size and for a tiny one.

Random checkpoints need them: the released weights are never fetched by tests or benchmarks. The numbers are those of
the release, not the defaults of transformers' config classes, which differ. The tiny model keeps what the algorithm
depends on (eight codebooks, 960 samples a frame, three query heads to one of keys) and is small in all else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Size = Literal["tiny", "3b"]
Form = Literal["transformers", "boson"]  # the one that transformers writes, and Boson's first one
Json = dict[str, Any]

CODEBOOKS = 8
CODES = 1024
STREAM_BOS, STREAM_EOS = CODES, CODES + 1  # the last two rows of a codebook's vocabulary
RATIOS = (8, 5, 4, 2, 3)
SAMPLE_RATE = 24000
TEXT_VOCAB_SIZE = 128256  # of the published size, whichever tokenizer is used
# Two ways to write one function: in both, scaling begins at wavelengths of 2048 and is complete at 8192.
_ROPE: Mapping[Form, Json] = {
    "transformers": {
        "factor": 32.0,
        "high_freq_factor": 0.5,
        "low_freq_factor": 0.125,
        "original_max_position_embeddings": 1024,
        "rope_type": "llama3",
    },
    "boson": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}


def language_model_config(size: Size, form: Form, ids: Mapping[str, int], vocab_size: int) -> Json:
    """config.json of the language model. `ids` are those of the text tokenizer's special tokens."""
    return _as_transformers(size, ids, vocab_size) if form == "transformers" else _as_boson(size, ids, vocab_size)


def _as_transformers(size: Size, ids: Mapping[str, int], vocab_size: int) -> Json:
    return {
        "architectures": ["HiggsAudioV2ForConditionalGeneration"],
        "model_type": "higgs_audio_v2",
        "dtype": "float32" if size == "tiny" else "bfloat16",
        **llama_config(size, vocab_size),
        "max_position_embeddings": 2048,
        "rope_parameters": {"rope_theta": 500000.0, **_ROPE["transformers"]},
        "tie_word_embeddings": False,
        "bos_token_id": 1,  # as published: the prompt's first token comes from its text
        "eos_token_id": ids["<|eot_id|>"],
        "pad_token_id": ids["<|end_of_text|>"],
        "num_codebooks": CODEBOOKS,
        "codebook_size": CODES + 2,
        "audio_token_id": ids["<|AUDIO_OUT|>"],
        "audio_bos_token_id": ids["<|audio_out_bos|>"],
        "audio_delay_token_id": ids["<|reserved_special_token_6|>"],
        "audio_stream_bos_id": STREAM_BOS,
        "audio_stream_eos_id": STREAM_EOS,
    }


def _as_boson(size: Size, ids: Mapping[str, int], vocab_size: int) -> Json:
    llama = llama_config(size, vocab_size)
    dtype = "float32" if size == "tiny" else "bfloat16"
    return {
        "architectures": ["HiggsAudioModel"],
        "model_type": "higgs_audio",
        "torch_dtype": dtype,
        "hidden_size": llama["hidden_size"],
        "pad_token_id": ids["<|end_of_text|>"],
        "text_config": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "torch_dtype": dtype,
            **llama,
            "max_position_embeddings": 131072,
            "rope_theta": 500000.0,
            "rope_scaling": _ROPE["boson"],
            "tie_word_embeddings": True,  # Llama's own value, though the folder holds a text head beside the embedding
            "bos_token_id": ids["<|begin_of_text|>"],
            "eos_token_id": ids["<|end_of_text|>"],
        },
        "audio_adapter_type": "dual_ffn_fast_forward",
        "audio_dual_ffn_layers": list(range(llama["num_hidden_layers"])),
        "audio_ffn_hidden_size": llama["hidden_size"],
        "audio_ffn_intermediate_size": llama["intermediate_size"],
        "audio_num_codebooks": CODEBOOKS,
        "audio_codebook_size": CODES,
        "audio_embed_avg": False,
        "audio_decoder_proj_num_layers": 0,
        "audio_bos_token": "<|audio_bos|>",
        "audio_eos_token": "<|audio_eos|>",
        "audio_eos_token_id": ids["<|audio_eos|>"],
        "audio_in_token": "<|AUDIO|>",
        "audio_in_token_idx": ids["<|AUDIO|>"],
        "audio_out_token": "<|AUDIO_OUT|>",
        "audio_out_token_idx": ids["<|AUDIO_OUT|>"],
        "audio_out_bos_token": "<|audio_out_bos|>",
        "audio_out_bos_token_id": ids["<|audio_out_bos|>"],
        "audio_stream_bos_id": STREAM_BOS,
        "audio_stream_eos_id": STREAM_EOS,
        "audio_tokenizer_config": None,
        "encode_audio_in_tokens": True,
        "encode_whisper_embed": False,
        "skip_audio_tower": True,
        "use_audio_out_embed_projector": False,
        "use_audio_out_self_attention": 0,
        "use_delay_pattern": True,
        "use_rq_transformer": False,
    }


def llama_config(size: Size, vocab_size: int) -> Json:
    tiny = size == "tiny"
    return {
        "vocab_size": vocab_size,
        "hidden_size": 96 if tiny else 3072,
        "intermediate_size": 192 if tiny else 8192,
        "num_hidden_layers": 3 if tiny else 28,
        "num_attention_heads": 6 if tiny else 24,
        "num_key_value_heads": 2 if tiny else 8,
        "head_dim": 16 if tiny else 128,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "initializer_range": 0.02,
        "pretraining_tp": 1,
        "use_cache": True,
    }


def generation_config(form: Form, ids: Mapping[str, int]) -> Json:
    """generation_config.json. Boson's says nothing of sampling."""
    if form == "boson":
        return {
            "bos_token_id": ids["<|begin_of_text|>"],
            "eos_token_id": ids["<|end_of_text|>"],
            "pad_token_id": ids["<|end_of_text|>"],
        }
    return {
        "bos_token_id": 1,
        "eos_token_id": ids["<|eot_id|>"],
        "pad_token_id": ids["<|end_of_text|>"],
        "do_sample": True,
        "temperature": 1.0,
        "top_p": 0.95,
        "top_k": 50,
        "ras_win_len": 7,
        "ras_win_max_num_repeat": 2,
        "use_text_head": True,
    }


def codec_config(size: Size, form: Form) -> Json:
    """config.json of the codec.

    Boson's form leaves out what its code fixes: the widths of both encoders and of the decoder. A tiny codec states
    them as transformers' form does; the published file in Boson's form has neither of the two objects.
    """
    acoustic, semantic = acoustic_config(size), _semantic(size)
    codebook_dim = 8 if size == "tiny" else 64
    if form == "boson":
        published = {
            "n_filters": 32,
            "D": acoustic["hidden_size"],
            "codebook_dim": codebook_dim,
            "target_bandwidths": [0.5, 1, 1.5, 2, 4],
            "ratios": list(RATIOS),
            "sample_rate": SAMPLE_RATE,
            "bins": CODES,
            "n_q": CODEBOOKS,
            "semantic_techer": "hubert_base_general",
        }
        widths = {"acoustic_model_config": acoustic, "semantic_model_config": semantic}
        return published | (widths if size == "tiny" else {})
    return {
        "architectures": ["HiggsAudioV2TokenizerModel"],
        "model_type": "higgs_audio_v2_tokenizer",
        "dtype": "float32",
        "acoustic_model_config": acoustic,
        "semantic_model_config": semantic,
        "target_bandwidths": [0.5, 1, 1.5, 2],  # the last one gives the number of codebooks
        "sample_rate": SAMPLE_RATE,
        "semantic_sample_rate": 16000,
        "downsample_factor": 320,
        "codebook_size": CODES,
        "codebook_dim": codebook_dim,
        "kernel_size": 3,
        "unit_kernel_size": 3,
        "channel_ratios": [1, 1],
        "strides": [1, 1],
        "block_dilations": [1, 1],
        "initializer_range": 0.02,
    }


def acoustic_config(size: Size) -> Json:
    tiny = size == "tiny"
    return {
        "model_type": "dac",
        "encoder_hidden_size": 4 if tiny else 64,
        "decoder_hidden_size": 64 if tiny else 1024,
        "hidden_size": 16 if tiny else 256,
        "downsampling_ratios": list(RATIOS),
        "upsampling_ratios": list(RATIOS),
        "hop_length": 960,
        "sampling_rate": 16000,  # as published, though its input is at SAMPLE_RATE
        "codebook_dim": 8,  # of a quantizer of DAC's own that is absent here, like the next two
        "codebook_size": 1024,
        "n_codebooks": 9,
    }


def _semantic(size: Size) -> Json:
    tiny = size == "tiny"
    return {
        "model_type": "hubert",
        "hidden_size": 24 if tiny else 768,
        "num_hidden_layers": 2 if tiny else 12,
        "num_attention_heads": 3 if tiny else 12,
        "intermediate_size": 48 if tiny else 3072,
        "conv_dim": [16 if tiny else 512] * 7,
        "conv_kernel": [10, 3, 3, 3, 3, 2, 2],
        "conv_stride": [5, 2, 2, 2, 2, 2, 2],
        "conv_bias": False,
        "num_feat_extract_layers": 7,
        "num_conv_pos_embeddings": 16 if tiny else 128,
        "num_conv_pos_embedding_groups": 4 if tiny else 16,
        "conv_pos_batch_norm": False,
        "feat_extract_norm": "group",
        "feat_extract_activation": "gelu",
        "feat_proj_layer_norm": True,
        "do_stable_layer_norm": False,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "apply_spec_augment": True,
        "mask_time_prob": 0.0,
        "mask_feature_prob": 0.0,
        "vocab_size": 32,
    }
