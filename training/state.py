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
    """Replace what `folder` holds under `name`."""
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob(f"{name}-*.safetensors"):
        stale.unlink()
    for i, shard in enumerate(_shards(tensors)):
        data = {n: t.detach().contiguous().cpu() for n, t in shard.items()}
        save_file(data, folder / f"{name}-{i:02d}.safetensors", {"trainer": json.dumps(dict(meta))})


def read(folder: Path, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    paths = sorted(folder.glob(f"{name}-*.safetensors"))
    if not paths:
        raise FileNotFoundError(
            f"{folder} holds no {name}-*.safetensors: give the folder in which a run left its state"
        )
    tensors: dict[str, Tensor] = {}
    meta: dict[str, Any] = {}
    for path in paths:
        with safe_open(str(path), "pt") as f:
            meta = json.loads(f.metadata()["trainer"])
            tensors |= {key: f.get_tensor(key) for key in f.keys()}  # noqa: SIM118 (it is no mapping)
    return tensors, meta


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
