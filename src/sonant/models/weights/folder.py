"""Finds the weights in a checkpoint folder."""

from __future__ import annotations

from pathlib import Path

from sonant.errors import CheckpointError
from sonant.models.weights.safetensors_file import SafetensorsFile
from sonant.models.weights.shards import ShardedSafetensors
from sonant.models.weights.source import TensorSource


def open_weights(folder: Path, stem: str = "model") -> TensorSource:
    """`stem`.safetensors, else the shards of `stem`.safetensors.index.json.

    One whole file takes precedence over shards, as in the official loaders: a folder may still hold the shards of the
    checkpoint that it was converted from.
    """
    whole, index = folder / f"{stem}.safetensors", folder / f"{stem}.safetensors.index.json"
    if whole.exists():
        return SafetensorsFile(whole)
    if index.exists():
        return ShardedSafetensors(index)
    if shards := sorted(folder.glob(f"{stem}-*-of-*.safetensors")):
        raise CheckpointError(f"{index} is missing: it says which tensor is in {shards[0].name} and its like; fetch it")
    return SafetensorsFile(whole)
