"""The GPU memory that an engine can do without while nobody speaks: its weights and its KV cache.

In an engine that may sleep both lie in regions of their own, and pinned host memory holds a copy of the weights. While
it sleeps it keeps only what is small on the GPU: a context, rows, graphs. Once it wakes everything is at its old
address, so that graphs stay valid; the cache is empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

import torch
from torch import Tensor

from sonant.engine.device_region import DeviceRegion
from sonant.models.weight_blocks import HeldTensor, ModelWeights, held_tensors
from sonant.models.weights import HostMemory
from sonant.models.weights.host_memory import BlockLayout

_ALIGNMENT = 512


@dataclass(frozen=True)
class _Place:
    """Where a tensor lies in the region. Storages move as a whole, so views of the same memory still share it."""

    held: HeldTensor
    start: int  # of what was in its storage
    size: int
    like: Tensor  # on the meta device
    offset: int

    def view(self, memory: Tensor) -> Tensor:
        words = memory[self.start : self.start + self.size].view(self.like.dtype)
        return words.as_strided(self.like.shape, self.like.stride(), words.storage_offset() + self.offset)


class Residents:
    @torch.no_grad()
    def __init__(self, weights: ModelWeights, device: torch.device, apart: Iterable[Tensor] = ()) -> None:
        """For weights on the device, of which those in the memory of `apart` stay where they are. The others move by
        way of the host, so that the device never holds them twice."""
        self.device = device
        places, total = _places(weights, device, {tensor.untyped_storage()._cdata for tensor in apart})
        like = torch.empty(max(total, _ALIGNMENT), dtype=torch.uint8, device="meta")
        self._copy = HostMemory(frozenset(), device).take("residents", [like]).memory[: len(like)]
        for place in places:
            old = place.held.value
            self._copy[place.start : place.start + place.size].copy_(_bytes_of(old))
        for place in places:
            place.held.replace(torch.empty(0, dtype=place.like.dtype, device=device))
        if device.type == "cuda":
            torch.cuda.empty_cache()
        self._weights = DeviceRegion(len(like), device)
        self._weights.memory.copy_(self._copy)
        for place in places:
            place.held.replace(place.view(self._weights.memory))
        self._caches: list[DeviceRegion] = []

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory that loses its contents when the engine sleeps."""
        layout = BlockLayout.of([torch.empty(shape, dtype=dtype, device="meta")])
        self._caches.append(DeviceRegion(max(layout.total_bytes, _ALIGNMENT), self.device))
        return layout.views(self._caches[-1].memory)[0]

    @property
    def held_bytes(self) -> int:
        return sum(region.count for region in (self._weights, *self._caches))

    def sleep(self) -> None:
        """Release all; no step may be in flight."""
        for region in (self._weights, *self._caches):
            region.release()

    def wake(self) -> None:
        for region in (self._weights, *self._caches):
            region.restore()
        self._weights.memory.copy_(self._copy)
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()  # since others compute on other streams


def _places(weights: ModelWeights, device: torch.device, apart: Set[int]) -> tuple[list[_Place], int]:
    starts: dict[int, int] = {}
    places, total = [], 0
    for held in held_tensors(weights.modules):
        value = held.value
        storage = value.untyped_storage()
        if value.device.type != device.type or storage._cdata in apart:
            continue
        if storage._cdata not in starts:
            starts[storage._cdata] = total
            total += -(-storage.nbytes() // _ALIGNMENT) * _ALIGNMENT
        like = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        places.append(_Place(held, starts[storage._cdata], storage.nbytes(), like, int(value.storage_offset())))
    return places, total


def _bytes_of(tensor: Tensor) -> Tensor:
    """The bytes of its whole storage."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (storage.nbytes(),), (1,))
