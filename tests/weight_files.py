"""Small weight files in every form in which weights are published, and a module that they fill."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from sonant.models.weights import PickledTensors, TensorSource, open_weights

Tensors = dict[str, Tensor]
Write = Callable[[Path, Tensors], TensorSource]


class Fused(nn.Module):
    """Three fused projections, a norm and a scalar: all the cases of loading."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv_proj = nn.Linear(6, 12, bias=False)
        self.norm = nn.LayerNorm(6)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))


def stored(seed: int = 0) -> Tensors:
    g = torch.Generator().manual_seed(seed)
    shapes = {"q_proj.weight": (6, 6), "k_proj.weight": (3, 6), "v_proj.weight": (3, 6), "norm.weight": (6,)}
    tensors = {f"a.{name}": torch.randn(shape, generator=g) for name, shape in shapes.items()}
    return tensors | {"a.norm.bias": torch.randn(6, generator=g), "a.count": torch.tensor(7)}


def whole(folder: Path, tensors: Tensors) -> TensorSource:
    save_file(tensors, folder / "model.safetensors")
    return open_weights(folder)


def shards(folder: Path, tensors: Tensors) -> TensorSource:
    names = list(tensors)
    for n in range(2):
        save_file({name: tensors[name] for name in names[n::2]}, folder / f"model-{n}.safetensors")
    write_index(folder, {name: f"model-{n % 2}.safetensors" for n, name in enumerate(names)})
    return open_weights(folder)


def pickled(folder: Path, tensors: Tensors) -> TensorSource:
    torch.save(tensors, folder / "model.pth")
    return PickledTensors(folder / "model.pth")


def wrapped(folder: Path, tensors: Tensors) -> TensorSource:
    torch.save({"state_dict": tensors}, folder / "model.pth")
    return PickledTensors(folder / "model.pth")


def write_index(folder: Path, places: object) -> Path:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": places}))
    return path
