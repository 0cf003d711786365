"""The language model's config of a Higgs Audio V2 that only lays out prompts."""

from __future__ import annotations

from sonant.layers.rope_scaling import Llama3Scaling
from sonant.models.higgs_audio_v2.config import HiggsConfig, LlamaConfig
from sonant.models.higgs_audio_v2.knobs import KNOBS
from sonant.models.higgs_audio_v2.tokenizer import TextTokenizer

BOS, EOS = 1024, 1025  # of each stream of codes


def config_for(tokenizer: TextTokenizer) -> HiggsConfig:
    return HiggsConfig(
        llama=LlamaConfig(
            vocab_size=tokenizer.size, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, head_dim=4, rms_norm_eps=1e-5, rope_theta=5e5,
        ),
        rope=Llama3Scaling(32.0, 1.0, 4.0, 8192.0),
        codebook_size=1026,
        audio_token_id=tokenizer.ids["<|AUDIO_OUT|>"],
        audio_bos_token_id=tokenizer.ids["<|audio_out_bos|>"],
        audio_delay_token_id=tokenizer.ids["<|reserved_special_token_6|>"],
        stream_bos=BOS,
        stream_eos=EOS,
        knobs=KNOBS,
    )  # fmt: skip
