"""Safetensors in several files with an index that says which tensor lies where.

The index is not trusted: it may name only files in its own folder, and what it says is compared with what the shards
hold. Nothing is opened by a name that would lead out of the folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from types import MappingProxyType

import torch

from sonant.errors import CheckpointError
from sonant.models.weights.safetensors_file import SafetensorsFile
from sonant.models.weights.source import Read, StoredTensor
from sonant.models.weights.staged import FilePlace


class ShardedSafetensors:
    def __init__(self, index: Path) -> None:
        self.index = index
        self.places = _weight_map(index)  # tensor → shard
        self.shards = {name: self._open(name) for name in sorted(set(self.places.values()))}
        self._compare()
        tensors = {name: stored for shard in self.shards.values() for name, stored in shard.tensors.items()}
        self.tensors: Mapping[str, StoredTensor] = MappingProxyType(tensors)

    @property
    def label(self) -> str:
        return str(self.index)

    def place_of(self, name: str) -> FilePlace:
        return self.shards[self.places[name]].place_of(name)

    @contextmanager
    def window(self) -> Iterator[Read]:
        with ExitStack() as stack:
            opened: dict[str, Read] = {}

            def read(name: str, start: int, end: int) -> torch.Tensor:
                shard = self.places[name]
                if shard not in opened:
                    opened[shard] = stack.enter_context(self.shards[shard].window())
                return opened[shard](name, start, end)

            yield read

    def _open(self, shard: str) -> SafetensorsFile:
        parts = PurePosixPath(shard)
        # Only the name is checked: in a download cache the file itself is often a link to somewhere else.
        if not parts.name or parts.is_absolute() or ".." in parts.parts or "\\" in shard or ":" in shard:
            raise CheckpointError(f"{self.index} names {shard!r}, which is no file inside its folder")
        path = self.index.parent / shard
        if not path.exists():
            raise CheckpointError(f"{path} is missing, though {self.index.name} names it; fetch it too")
        return SafetensorsFile(path)

    def _compare(self) -> None:
        """Raise unless every tensor is in the shard that the index says, and in no other."""
        found: dict[str, str] = {}
        for shard, file in self.shards.items():
            for name in file.tensors:
                if name in found:
                    raise CheckpointError(f"{self.index.parent}: {name} is both in {found[name]} and in {shard}")
                found[name] = shard
        for name, shard in self.places.items():
            if name not in found:
                raise CheckpointError(f"{self.index}: {name} should be in {shard}, which does not hold it")
            if found[name] != shard:
                raise CheckpointError(f"{self.index}: {name} should be in {shard}, but {found[name]} holds it")
        if strangers := [name for name in found if name not in self.places]:
            raise CheckpointError(f"{self.index} does not list {strangers[0]}, which {found[strangers[0]]} holds")


def _weight_map(index: Path) -> dict[str, str]:
    try:
        raw = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise CheckpointError(f"{index} cannot be read as JSON: {e}") from e
    places = raw.get("weight_map") if isinstance(raw, dict) else None
    if not isinstance(places, dict) or not places or not all(isinstance(shard, str) for shard in places.values()):
        raise CheckpointError(f"{index}: its weight_map should say for every tensor in which file it is")
    return places
