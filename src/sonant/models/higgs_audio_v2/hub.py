"""Where Higgs Audio V2 is published, and which of its files are read; its codec has a repository of its own."""

from __future__ import annotations

from sonant.models.beside import Beside

NAMES = {"higgs-audio-v2": "bosonai/higgs-audio-v2-generation-3B-base"}
FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "model*.safetensors",
    "model.safetensors.index.json",
)
# Beside model.pth lies a model.safetensors of 11.5 GB, which is a copy of the language model.
BESIDE = (Beside("bosonai/higgs-audio-v2-tokenizer", ("config.json", "model.pth"), "audio_tokenizer"),)
