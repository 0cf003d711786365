"""Tensors in a file that `torch.save` wrote, for families that are published in no other form.

A pickle is a program. It is read with torch's restricted reader, which builds tensors and plain containers and
refuses everything else. Only a family that names this class uses it: `open_weights` never does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import torch

from sonant.errors import CheckpointError
from sonant.models.weights.source import Read, StoredTensor

_WRAPPER = "state_dict"


class PickledTensors:
    """A mapping of names to tensors, or {"state_dict": such a mapping}."""

    def __init__(self, path: Path) -> None:
        self.path = path
        held = {name: StoredTensor(tuple(t.shape), t.dtype) for name, t in self._load().items()}
        self.tensors: Mapping[str, StoredTensor] = MappingProxyType(held)

    @property
    def label(self) -> str:
        return str(self.path)

    @contextmanager
    def window(self) -> Iterator[Read]:
        tensors = self._load()  # mapped anew for every window: pages that were read are freed with the mapping

        def read(name: str, start: int, end: int) -> torch.Tensor:
            tensor = tensors[name].detach()
            return tensor[start:end] if tensor.dim() else tensor[None]

        yield read
        tensors.clear()

    def _load(self) -> dict[str, torch.Tensor]:
        if not self.path.is_file():
            raise CheckpointError(f"{self.path} is missing")
        try:
            held = torch.load(self.path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as e:  # a broken or hostile file can fail in any way while it is read
            raise CheckpointError(
                f"{self.path} is not a whole file of tensors and nothing else, as torch.save writes it; "
                f"fetch it again or convert it to safetensors ({str(e).splitlines()[0] if str(e) else e!r})"
            ) from e
        if isinstance(held, Mapping) and set(held) == {_WRAPPER}:
            held = held[_WRAPPER]
        if not isinstance(held, Mapping):
            raise CheckpointError(f"{self.path} holds a {type(held).__name__}, not tensors by name")
        for name, value in held.items():
            if not isinstance(name, str) or not _is_plain(value):
                raise CheckpointError(f"{self.path}: {name!r} is no plain tensor; only those are read from a pickle")
        return dict(held)


def _is_plain(value: object) -> bool:
    """Whether it is a dense tensor with numbers in it: not sparse, not quantised, not on the meta device."""
    if not isinstance(value, torch.Tensor):
        return False
    return value.layout == torch.strided and not value.is_quantized and value.device.type == "cpu"
