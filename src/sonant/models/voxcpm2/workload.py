"""The shapes of the published VoxCPM2, for benchmarks and for the tuner."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from sonant.models.voxcpm2.synthetic.presets import Json, model_config
from sonant.models.workload import CodecWorkload, StackWorkload, Workloads

SIZES = ("2b",)
TUNED_SIZE = "2b"
_CONTEXT = 120  # positions of a row in the cache: a sentence and ten seconds
_VOCAB = 73_448


def workloads(sizes: Sequence[str]) -> Workloads:
    """The language models, whose layers are alike, and the flow's estimator, in which a row is eleven tokens twice."""
    config = model_config("2b", _VOCAB)
    lm, vae = config["lm_config"], config["audio_vae_config"]
    language = StackWorkload(
        "voxcpm2 language",
        hidden=lm["hidden_size"],
        inner=lm["intermediate_size"],
        heads=lm["num_attention_heads"],
        kv_heads=lm["num_key_value_heads"],
        head_dim=lm["kv_channels"],
        vocab=lm["hidden_size"],
        context=_CONTEXT,
        per_frame=False,
        draws=False,
        head_norms=False,
    )
    codec = CodecWorkload(
        "voxcpm2 codec",
        heads=0,
        head_dim=0,
        window=0,
        latent=vae["latent_dim"],
        channels=vae["decoder_dim"],
        steps_per_frame=config["patch_size"],
        upsample_rates=tuple(vae["decoder_rates"]),
        samples_per_frame=config["patch_size"] * prod(vae["decoder_rates"]),
        depthwise=True,
    )
    return Workloads((language, _flow(config)), codec, uniforms=config["patch_size"] * config["feat_dim"])


def _flow(config: Json) -> StackWorkload:
    dit, lm, patch = config["dit_config"], config["lm_config"], config["patch_size"]
    tokens = 2 * patch + 3  # the previous patch, the patch, both models' states and the time
    return StackWorkload(
        "voxcpm2 flow",
        hidden=dit["hidden_dim"],
        inner=dit["ffn_dim"],
        heads=dit["num_heads"],
        kv_heads=lm["num_key_value_heads"],
        head_dim=dit["kv_channels"],
        vocab=dit["hidden_dim"],
        context=tokens,
        per_frame=True,
        draws=False,
        tokens=2 * tokens,  # guided and free
        patch=(patch, config["feat_dim"]),
        head_norms=False,
    )
