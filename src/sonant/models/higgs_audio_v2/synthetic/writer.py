"""Writes checkpoints of random weights in the published layouts, at a tiny size or at full size.

Tests, benchmarks and a first try of the program need a model without a download. It speaks noise. Both layouts hold
the same numbers: every tensor is drawn by the name that transformers gives it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import torch

from sonant.errors import CheckpointError
from sonant.models.higgs_audio_v2.config import HiggsConfig
from sonant.models.higgs_audio_v2.synthetic import first_form
from sonant.models.higgs_audio_v2.synthetic.draws import draw_codec, draw_language_model, end_of_speech
from sonant.models.higgs_audio_v2.synthetic.presets import (
    RATIOS,
    TEXT_VOCAB_SIZE,
    Form,
    Json,
    Size,
    codec_config,
    generation_config,
    language_model_config,
)
from sonant.models.higgs_audio_v2.synthetic.shapes import codec_shapes, language_model_shapes
from sonant.models.higgs_audio_v2.synthetic.vocabulary import FIRST_SPECIAL, write_tokenizer
from sonant.models.synthetic_tensors import RandomTensors

SEED = 18
CODEC_SEED = 7
CODEC_FOLDER = "audio_tokenizer"
SHARDS = 3  # of Boson's layout
BYTES = 256
# (gain, bias) of the end of speech: after some tens of rows, or never, whatever the sampling
_ENDS = {"tiny": (1.3, 0.0), "3b": (0.0, -40.0)}
_WAV_GAINS = {"tiny": 0.03, "3b": 0.02}  # of the last convolution: the level of speech

Kind = Literal["base"]


def write_checkpoint(
    folder: Path,
    *,
    kind: Kind = "base",
    size: Size = "tiny",
    device: str | torch.device = "cpu",
    form: Form = "transformers",
    codec_form: Form = "transformers",
    codec_folder: Path | None = None,
    seed: int = SEED,
    dtype: torch.dtype | None = None,
    end: tuple[float, float] | None = None,
    tokenizer_from: Path | None = None,
) -> None:
    """Write a language model and its codec; the folders must not hold one already.

    The codec goes into `audio_tokenizer/`, or into `codec_folder`. `tokenizer_from` is a folder with the real
    tokenizer.json. `end` is the gain of the rows that end speech and a bias to their logits: at the tiny size
    utterances end by themselves after some tens of rows; at full size never, which is what a benchmark wants. CPU and
    GPU draw different values.
    """
    if kind != "base":
        raise CheckpointError(f"there is only one kind of this model, 'base', and not {kind!r}")
    write_language_model(
        folder, size=size, device=device, form=form, seed=seed, dtype=dtype, end=end, tokenizer_from=tokenizer_from
    )
    write_codec(codec_folder or folder / CODEC_FOLDER, size=size, device=device, form=codec_form)


def write_language_model(
    folder: Path,
    *,
    size: Size,
    device: str | torch.device = "cpu",
    form: Form = "transformers",
    seed: int = SEED,
    dtype: torch.dtype | None = None,
    end: tuple[float, float] | None = None,
    tokenizer_from: Path | None = None,
) -> None:
    _refuse_to_overwrite(folder, "model.safetensors", "model.safetensors.index.json")
    config = write_configs(folder, size=size, form=form, tokenizer_from=tokenizer_from)
    gain, bias = end or _ENDS[size]
    tensors = RandomTensors(
        language_model_shapes(config),
        draw_language_model,
        seed,
        torch.device(device),
        {"audio_lm_head.weight": end_of_speech(gain, bias)},
    )
    dtype = dtype or (torch.float32 if size == "tiny" else torch.bfloat16)
    if form == "transformers":
        tensors.write(folder / "model.safetensors", dtype)
    else:
        _write_shards(folder, tensors, dtype)


def write_configs(
    folder: Path, *, size: Size, form: Form = "transformers", tokenizer_from: Path | None = None
) -> HiggsConfig:
    """Write the language model's folder without its weights, and read it back as the loader will."""
    folder.mkdir(parents=True, exist_ok=True)
    tiny = size == "tiny"
    ids = write_tokenizer(folder, first_special=BYTES if tiny else FIRST_SPECIAL, real=tokenizer_from)
    used = max(ids.values()) + 1
    vocab_size = used + (-used) % 32 if tiny else TEXT_VOCAB_SIZE
    if used > vocab_size:
        raise CheckpointError(f"{tokenizer_from} has {used} tokens; the model takes {vocab_size}")
    _write_json(folder / "config.json", language_model_config(size, form, ids, vocab_size))
    _write_json(folder / "generation_config.json", generation_config(form, ids))
    return HiggsConfig.read(folder)


def write_codec(folder: Path, *, size: Size, device: str | torch.device = "cpu", form: Form = "transformers") -> None:
    """Write the codec into a folder of its own, always in float32: `model.safetensors`, or Boson's `model.pth`."""
    _refuse_to_overwrite(folder, "model.safetensors", "model.pth")
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", codec_config(size, form))
    tensors = RandomTensors(
        codec_shapes(codec_config(size, "transformers")),
        draw_codec,
        CODEC_SEED,
        torch.device(device),
        {"acoustic_decoder.conv2.weight": lambda w: w.mul_(_WAV_GAINS[size])},
    )
    if form == "transformers":
        tensors.write(folder / "model.safetensors", torch.float32)
    else:
        drawn = {name: tensors.tensor(name).cpu() for name in tensors.shapes}
        torch.save(first_form.codec_tensors(drawn, len(RATIOS)), folder / "model.pth")


def _write_shards(folder: Path, tensors: RandomTensors, dtype: torch.dtype) -> None:
    """Write Boson's names into three files, each with a third of the tensors, even if that splits a layer."""
    names = list(tensors.shapes)
    places: dict[str, str] = {}
    for i in range(SHARDS):
        shard = f"model-{i + 1:05d}-of-{SHARDS:05d}.safetensors"
        part = names[i * len(names) // SHARDS : (i + 1) * len(names) // SHARDS]
        stored = {name: first_form.language_model_name(name) for name in part}
        tensors.write(folder / shard, dtype, stored)
        places |= dict.fromkeys(stored.values(), shard)
    numbers = sum(torch.Size(shape).numel() for shape in tensors.shapes.values())
    index = {"metadata": {"total_size": numbers * dtype.itemsize}, "weight_map": dict(sorted(places.items()))}
    _write_json(folder / "model.safetensors.index.json", index)


def _refuse_to_overwrite(folder: Path, *files: str) -> None:
    for file in files:
        if (folder / file).exists():
            raise CheckpointError(f"{folder} already holds a {file}, which random weights would overwrite")


def _write_json(path: Path, content: Json) -> None:
    path.write_text(json.dumps(content, indent=2), encoding="utf-8")
