"""Pinned host memory for the weights that do not stay on a GPU, which reads it by itself.

Each block is one range of pages, laid out as in its slot on the device, so that one copy moves it. The pages are
registered with the driver ("pinned") after they are allocated: torch's own pinned memory comes in powers of two, up to
twice the size needed. Files are read straight into them, and there is no other copy on the host.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sonant.byte_size import shown
from sonant.errors import ConfigError

_ALIGNMENT = 512  # as torch's memory on a GPU: kernels are compiled for addresses that are multiples of 16
_PORTABLE_AND_MAPPED = 3  # cudaHostRegister's flags: for every context, and readable by kernels


@dataclass(frozen=True)
class BlockLayout:
    """Where some tensors lie in one range of bytes."""

    tensors: tuple[tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype], ...]  # offset, size, stride
    total_bytes: int

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> BlockLayout:
        places, offset = [], 0
        for t in tensors:
            places.append((offset, tuple(t.shape), t.stride(), t.dtype))
            extent = 1 + sum((size - 1) * step for size, step in zip(t.shape, t.stride(), strict=True))
            offset += -(-extent * t.element_size() // _ALIGNMENT) * _ALIGNMENT
        return cls(tuple(places), offset)

    def views(self, memory: Tensor) -> list[Tensor]:
        """The tensors in `memory` [bytes] uint8."""
        found = []
        for offset, size, stride, dtype in self.tensors:
            extent = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if math.prod(size) else 0
            words = memory[offset : offset + extent * dtype.itemsize].view(dtype)
            found.append(words.as_strided(size, stride, words.storage_offset()))
        return found


@dataclass(frozen=True)
class HostBlock:
    memory: Tensor  # [bytes] uint8
    layout: BlockLayout

    def views(self) -> list[Tensor]:
        return self.layout.views(self.memory)

    def holds(self, tensors: Sequence[Tensor]) -> bool:
        """Whether all these tensors lie in this memory."""
        mine = self.memory.untyped_storage()._cdata
        return all(t.untyped_storage()._cdata == mine for t in tensors)


class _Pages(mmap.mmap):
    """Memory that is unpinned before it is freed."""

    unpin: Callable[[], object] | None = None

    def __del__(self) -> None:
        if self.unpin is not None:
            self.unpin()


class HostMemory:
    """Holds the blocks and tables named, of a model on `device`."""

    def __init__(self, names: frozenset[str], device: torch.device) -> None:
        self.names, self.device = names, device
        self.blocks: dict[str, HostBlock] = {}

    @property
    def total_bytes(self) -> int:
        return sum(block.layout.total_bytes for block in self.blocks.values())

    def take(self, name: str, tensors: Sequence[Tensor]) -> HostBlock:
        """Allocate memory for tensors like these, without filling it."""
        layout = BlockLayout.of(tensors)
        self.blocks[name] = HostBlock(self._pages(max(layout.total_bytes, _ALIGNMENT)), layout)
        return self.blocks[name]

    def adopt(self, name: str, tensors: Sequence[Tensor]) -> HostBlock:
        """The block of these tensors, copied there unless they already lie in it."""
        known = self.blocks.get(name)
        if known is not None and known.holds(tensors):
            return known
        block = self.take(name, tensors)
        for place, tensor in zip(block.views(), tensors, strict=True):
            place.copy_(tensor)
        return block

    def _pages(self, count: int) -> Tensor:
        if self.device.type == "meta":
            return torch.empty(count, dtype=torch.uint8, device="meta")
        pages = _Pages(-1, count)
        memory = torch.frombuffer(pages, dtype=torch.uint8)
        if self.device.type == "cuda":
            pages.unpin = self._pin(memory)
        return memory

    def _pin(self, memory: Tensor) -> Callable[[], object]:
        runtime: Any = torch.cuda.cudart()
        error = int(runtime.cudaHostRegister(memory.data_ptr(), memory.numel(), _PORTABLE_AND_MAPPED))
        if error:
            raise ConfigError(
                f"this machine lets no more than {shown(self.total_bytes)} of weights be pinned in host memory, and "
                f"{shown(memory.numel())} more are needed (CUDA error {error}): free host memory, raise the limit of "
                "locked memory (ulimit -l unlimited, or for a container --ulimit memlock=-1 and more --memory), or "
                "page less with a larger gpu_weights"
            )
        return partial(runtime.cudaHostUnregister, memory.data_ptr())
