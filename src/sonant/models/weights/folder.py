"""Finds the weights in a checkpoint folder."""

from __future__ import annotations

from pathlib import Path

from sonant.errors import CheckpointError
from sonant.models.weights.safetensors_file import SafetensorsFile
from sonant.models.weights.shards import ShardedSafetensors
from sonant.models.weights.source import TensorSource


def open_weights(folder: Path, stem: str = "model") -> TensorSource:
    """`stem`.safetensors, else the shards of `stem`.safetensors.index.json.

    One whole file goes before shards, as the official loaders have it: a folder may keep the shards of what it was
    made from.
    """
    whole, index = folder / f"{stem}.safetensors", folder / f"{stem}.safetensors.index.json"
    if whole.exists():
        return SafetensorsFile(whole)
    if index.exists():
        return ShardedSafetensors(index)
    if shards := sorted(folder.glob(f"{stem}-*-of-*.safetensors")):
        raise CheckpointError(f"{index} is missing: it says which tensor is in {shards[0].name} and its like; fetch it")
    return SafetensorsFile(whole)
