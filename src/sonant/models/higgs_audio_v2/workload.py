"""The shapes of the published Higgs Audio V2, for benchmarks and for the tuner."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from sonant.models.higgs_audio_v2.synthetic.presets import (
    CODEBOOKS,
    CODES,
    RATIOS,
    TEXT_VOCAB_SIZE,
    acoustic_config,
    llama_config,
)
from sonant.models.workload import CodecWorkload, StackWorkload, Workloads

SIZES = ("3b",)
TUNED_SIZE = "3b"
_CONTEXT = 350  # positions of a row in the cache: a prompt and ten seconds


def workloads(sizes: Sequence[str]) -> Workloads:
    """The shapes of the only size."""
    model, acoustic = llama_config("3b", TEXT_VOCAB_SIZE), acoustic_config("3b")
    stack = StackWorkload(
        "higgs 3b",
        hidden=model["hidden_size"],
        inner=model["intermediate_size"],
        heads=model["num_attention_heads"],
        kv_heads=model["num_key_value_heads"],
        head_dim=model["head_dim"],
        vocab=CODEBOOKS * (CODES + 2),
        context=_CONTEXT,
        per_frame=False,
        dual=True,
        head_norms=False,
        codebooks=CODEBOOKS,
    )
    codec = CodecWorkload(
        "higgs codec",
        heads=0,
        head_dim=0,
        window=0,
        latent=acoustic["hidden_size"],
        channels=acoustic["decoder_hidden_size"],
        steps_per_frame=1,
        upsample_rates=tuple(acoustic["upsampling_ratios"]),
        samples_per_frame=prod(RATIOS),
    )
    return Workloads((stack,), codec, uniforms=2 * CODEBOOKS)
