"""Where VoxCPM2 is published, and which of its files are read."""

from __future__ import annotations

from sonant.models.beside import Beside

NAMES = {"voxcpm2": "openbmb/VoxCPM2"}
FILES = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "audiovae.safetensors",
    "audiovae.pth",
)
BESIDE: tuple[Beside, ...] = ()
