"""Writes checkpoints of random weights in the published layout, at a tiny size or at full size.

Tests, benchmarks and a first try of the program need a model without a download. Its tensors are scaled so that
activations stay near one and the sound stays finite. It speaks noise.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import torch

from sonant.errors import CheckpointError
from sonant.models.qwen3_tts.config import Kind, Qwen3TTSConfig
from sonant.models.qwen3_tts.synthetic.presets import (
    CODE_GROUPS,
    Json,
    Size,
    codec_config,
    generation_config,
    model_config,
    small_files,
)
from sonant.models.qwen3_tts.synthetic.shapes import codec_shapes, model_shapes
from sonant.models.qwen3_tts.synthetic.vocabulary import write_tokenizer
from sonant.models.synthetic_tensors import RandomTensors, Shape

KIND_SEEDS: Mapping[Kind, int] = {"base": 11, "custom_voice": 22, "voice_design": 33}
CODEC_SEED = 7
TEXT_VOCAB_SIZE = 151936  # of the published sizes, whichever tokenizer is used


def write_checkpoint(
    folder: Path,
    *,
    kind: Kind,
    size: Size = "tiny",
    device: str | torch.device = "cpu",
    seed: int | None = None,
    dtype: torch.dtype | None = None,
    eos_gain: float | None = None,
    wav_gain: float = 0.05,
    tokenizer_from: Path | None = None,
    code_groups: int = CODE_GROUPS,
) -> None:
    """Write a whole checkpoint folder; it must not hold one already.

    `tokenizer_from` is a folder with the real vocab.json and merges.txt; without it a byte-level vocabulary
    is written. `eos_gain` scales the end-of-speech row of the talker's head: at the tiny size it is 2, so
    that utterances end by themselves about one step in twenty; at full size 0, so that they run to the
    frame budget, which is what a benchmark wants. `wav_gain` keeps the last convolution from clipping. Fewer
    `code_groups` than published make a frame cheaper. CPU and GPU draw different values.
    """
    if (folder / "model.safetensors").exists():
        raise CheckpointError(f"{folder} already holds a model.safetensors, which random weights would overwrite")
    tiny = size == "tiny"
    seed = KIND_SEEDS[kind] if seed is None else seed
    dtype = dtype or (torch.float32 if tiny else torch.bfloat16)
    eos_gain = (2.0 if tiny else 0.0) if eos_gain is None else eos_gain

    config = write_configs(folder, kind, size, tokenizer_from, code_groups)
    eos = config.talker.codec_eos_token_id
    last_conv = f"decoder.decoder.{len(config.codec.decoder.upsample_rates) + 2}.conv.weight"
    RandomTensors(
        model_shapes(config),
        draw,
        seed,
        torch.device(device),
        {"talker.codec_head.weight": lambda w: w[eos].mul_(eos_gain)},
    ).write(folder / "model.safetensors", dtype)
    RandomTensors(
        codec_shapes(config.codec),
        draw,
        CODEC_SEED,
        torch.device(device),
        {last_conv: lambda w: w.mul_(wav_gain)},
    ).write(folder / "speech_tokenizer" / "model.safetensors", torch.float32)  # as published, whatever the talker's is


def write_configs(
    folder: Path, kind: Kind, size: Size, tokenizer_from: Path | None, code_groups: int = CODE_GROUPS
) -> Qwen3TTSConfig:
    """Write everything but the weights, and read it back as the loader will."""
    (folder / "speech_tokenizer").mkdir(parents=True, exist_ok=True)
    text_ids = write_tokenizer(folder, tokenizer_from)
    ids_used = max(text_ids.values()) + 1
    text_vocab_size = ids_used + (-ids_used) % 64 if size == "tiny" else TEXT_VOCAB_SIZE
    if ids_used > text_vocab_size:
        raise CheckpointError(f"{tokenizer_from} has {ids_used} tokens; the model takes {text_vocab_size}")
    files: dict[str, Json] = {
        "config.json": model_config(size, kind, text_ids, text_vocab_size, code_groups),
        "generation_config.json": generation_config(),
        "speech_tokenizer/config.json": codec_config(size, code_groups),
        **small_files(),
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2), encoding="utf-8")
    return Qwen3TTSConfig.read(folder)


def draw(name: str, shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """A float32 tensor whose spread suits the kind of tensor that its name tells."""
    leaf = name.rsplit(".", 1)[-1]
    if leaf == "initialized":
        return torch.ones(shape, device=generator.device)
    normal = torch.randn(shape, generator=generator, device=generator.device)
    if "layer_scale" in name or leaf == "gamma":
        return 0.2 + 0.2 * torch.rand(shape, generator=generator, device=generator.device)
    if leaf == "cluster_usage":
        return 0.5 + torch.rand(shape, generator=generator, device=generator.device)
    if leaf in ("alpha", "beta"):
        return 0.3 * normal
    if "norm" in name and leaf == "weight":
        return 1.0 + 0.1 * normal
    if leaf == "bias":
        return 0.05 * normal
    if leaf == "embed_sum" or "embedding" in name:
        return normal
    fan_in = math.prod(shape[1:])
    value = normal / fan_in**0.5
    if ".conv2.conv." in name:  # the end of a residual branch of the vocoder: undamped, their sum blows up
        value = 0.3 * value
    return value
