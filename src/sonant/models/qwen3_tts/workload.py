"""The shapes of the published Qwen3-TTS sizes, for benchmarks and for the tuner."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import prod
from typing import cast

from sonant.models.qwen3_tts.synthetic.presets import SAMPLES_PER_FRAME, Json, Size, codec_config, model_config
from sonant.models.workload import CodecWorkload, StackWorkload, Workloads

SIZES = ("0.6b", "1.7b")
TUNED_SIZE = "1.7b"
_CONTEXT = 300  # positions of a row in the talker's cache: a sentence and twenty seconds


def workloads(sizes: Sequence[str]) -> Workloads:
    """The talker of each size, and the predictor and codec that they share."""
    talkers = {size: model_config(cast(Size, size), "custom_voice", defaultdict(int), 0) for size in sizes}
    configs = {size: config["talker_config"] for size, config in talkers.items()}
    shared = configs[sizes[0]]
    groups = shared["num_code_groups"]
    stacks = [_stack(f"talker {size}", config, _CONTEXT, per_frame=False) for size, config in configs.items()]
    stacks.append(_stack("predictor", shared["code_predictor_config"], groups, per_frame=True))
    return Workloads(tuple(stacks), _codec(codec_config(cast(Size, sizes[0]))["decoder_config"]), uniforms=groups)


def _stack(name: str, config: Json, context: int, *, per_frame: bool) -> StackWorkload:
    return StackWorkload(
        name,
        hidden=config["hidden_size"],
        inner=config["intermediate_size"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        vocab=config["vocab_size"],
        context=context,
        per_frame=per_frame,
    )


def _codec(config: Json) -> CodecWorkload:
    return CodecWorkload(
        "codec",
        heads=config["num_attention_heads"],
        head_dim=config["head_dim"],
        window=config["sliding_window"] - 1,
        latent=config["latent_dim"],
        channels=config["decoder_dim"],
        steps_per_frame=prod(config["upsampling_ratios"]),
        upsample_rates=tuple(config["upsample_rates"]),
        samples_per_frame=SAMPLES_PER_FRAME,
    )
