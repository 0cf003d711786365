"""A run's state as safetensors files of at most 15 MiB, the most that some ways home can carry."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

SHARD_BYTES = 15 << 20


def write(folder: Path, name: str, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Replace what `folder` holds under `name`. That stays until all of the new state is written."""
    folder.mkdir(parents=True, exist_ok=True)
    shards = list(_shards(tensors))
    told = {"trainer": json.dumps(dict(meta)), "files": str(len(shards))}
    made = [folder / f"{name}-{i:02d}.safetensors" for i in range(len(shards))]
    try:
        for path, shard in zip(made, shards, strict=True):
            save_file({n: t.detach().contiguous().cpu() for n, t in shard.items()}, _part(path), told)
        for path in made:
            _part(path).replace(path)
    finally:
        for path in made:
            _part(path).unlink(missing_ok=True)
    for stale in {*folder.glob(f"{name}-*.safetensors")} - {*made}:
        stale.unlink()


def _part(path: Path) -> Path:
    """What a file is called until all of the state is there."""
    return path.with_suffix(".part")


def read(folder: Path, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    paths = sorted(folder.glob(f"{name}-*.safetensors"))
    if not paths:
        raise FileNotFoundError(
            f"{folder} holds no {name}-*.safetensors: give the folder in which a run left its state"
        )
    tensors: dict[str, Tensor] = {}
    saves: list[dict[str, str]] = []
    for path in paths:
        with safe_open(str(path), "pt") as f:
            saves.append(f.metadata())
            tensors |= {key: f.get_tensor(key) for key in f.keys()}  # noqa: SIM118 (it is no mapping)
    whole = int(saves[0].get("files", len(paths)))  # older ones do not say how many they are
    if len(paths) != whole or any(save != saves[0] for save in saves):
        raise ValueError(f"{folder}: its {len(paths)} files {name}-*.safetensors are not one whole state of {whole}")
    return tensors, json.loads(saves[0]["trainer"])


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def optimizer_tensors(optimizer: torch.optim.Optimizer, prefix: str) -> dict[str, Tensor]:
    state = optimizer.state_dict()["state"]
    return {f"{prefix}{i}.{key}": torch.as_tensor(v) for i, values in state.items() for key, v in values.items()}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Restore it from tensors that are named as by `optimizer_tensors`, without the prefix."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        index, key = name.split(".")
        state.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})


def _shards(tensors: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    size = 0
    for name, value in tensors.items():
        if shard and size + value.nbytes > SHARD_BYTES:
            yield shard
            shard, size = {}, 0
        shard[name] = value
        size += value.nbytes
    yield shard
