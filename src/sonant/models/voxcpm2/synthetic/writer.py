"""Writes checkpoints of random weights in the published layout, at a tiny size, at a mid one or at full size.

Tests, benchmarks and a first try of the program need a model without a download. It speaks noise.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save_file

from sonant.errors import CheckpointError
from sonant.models.synthetic_tensors import RandomTensors
from sonant.models.voxcpm2.config import VoxCPM2Config
from sonant.models.voxcpm2.synthetic.draws import draw_model, end_of_speech, vae_draw
from sonant.models.voxcpm2.synthetic.presets import PRESETS, Size, model_config
from sonant.models.voxcpm2.synthetic.shapes import model_shapes, vae_shapes
from sonant.models.voxcpm2.synthetic.vocabulary import write_tokenizer

SEED = 18
VAE_SEED = 7
BOUNDARIES = "decoder.sr_bin_boundaries"
# (gain, bias) of the end of speech: after a few patches, or never
_ENDS = {"tiny": (6.0, -0.5), "mid": (6.0, 2.5), "2b": (1.0, 40.0)}

Kind = Literal["base"]
VaeForm = Literal["pth", "safetensors"]  # the published one, and the other that the official loader takes


def write_checkpoint(
    folder: Path,
    *,
    kind: Kind = "base",
    size: Size = "tiny",
    device: str | torch.device = "cpu",
    vae_form: VaeForm = "pth",
    seed: int = SEED,
    dtype: torch.dtype | None = None,
    end: tuple[float, float] | None = None,
    tokenizer_from: Path | None = None,
) -> None:
    """Write a model, its codec and its text tokenizer; the folder must not hold one already.

    `tokenizer_from` is a folder with the real tokenizer.json. `end` is a gain of the stop head's weights and a bias to
    the logit of going on: at the smaller sizes utterances end by themselves after some patches; at full size never,
    which is what a benchmark wants. CPU and GPU draw different values.
    """
    if kind != "base":
        raise CheckpointError(f"there is only one kind of this model, 'base', and not {kind!r}")
    for file in ("model.safetensors", "audiovae.pth", "audiovae.safetensors"):
        if (folder / file).exists():
            raise CheckpointError(f"{folder} already holds a {file}, which random weights would overwrite")
    dtype = dtype or getattr(torch, PRESETS[size].dtype)
    config = write_configs(folder, size=size, dtype=dtype, tokenizer_from=tokenizer_from)
    edits = end_of_speech(*(end or _ENDS[size]))
    tensors = RandomTensors(model_shapes(config), draw_model, seed, torch.device(device), edits)
    tensors.write(folder / "model.safetensors", dtype)
    vae = vae_tensors(config, device)
    if vae_form == "pth":
        torch.save({"state_dict": vae}, folder / "audiovae.pth")
    else:
        save_file(vae, folder / "audiovae.safetensors", metadata={"format": "pt"})


def write_configs(
    folder: Path, *, size: Size, dtype: torch.dtype | None = None, tokenizer_from: Path | None = None
) -> VoxCPM2Config:
    """Write the folder without its weights, and read it back as the loader will."""
    folder.mkdir(parents=True, exist_ok=True)
    used, vocab_size = write_tokenizer(folder, tokenizer_from), PRESETS[size].vocab_size
    if used > vocab_size and size == "2b":
        raise CheckpointError(f"{tokenizer_from} has {used} tokens; the model takes {vocab_size}")
    content = model_config(size, max(used, vocab_size))
    if dtype is not None:
        content["dtype"] = str(dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(content, indent=2), encoding="utf-8")
    return VoxCPM2Config.read(folder)


def vae_tensors(config: VoxCPM2Config, device: str | torch.device = "cpu") -> dict[str, torch.Tensor]:
    """The codec's tensors, all float32 but for the boundaries of the sample rates that condition its decoder."""
    draw = vae_draw(config.vae)
    tensors = RandomTensors(vae_shapes(config.vae), draw, VAE_SEED, torch.device(device))
    held = {name: tensors.tensor(name).cpu() for name in tensors.shapes if name != BOUNDARIES}
    return held | {BOUNDARIES: torch.tensor(config.vae["sr_bin_boundaries"], dtype=torch.int32)}
