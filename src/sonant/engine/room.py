"""How much a GPU is to take on, from its properties, so that nobody has to find out what suits theirs.

A frame step reads the weights and the rows' caches, so memory bandwidth decides. torch does not report that on all
machines, but the generation, the memory's size and the number of processors tell enough. Measured on an H200 with a
model of 1.7B: 8 ms for 128 rows and 12 to 13 ms for 256, where a frame lasts 80 ms. Larger batches were not measured.
By that slope 1,024 rows take 40 ms, and 2,000 listeners need a batch of about 700. For other GPUs it is an estimate, on
the cautious side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from sonant.config import EngineConfig, Room, power_of_two
from sonant.models.spec import ModelSpec

_MOST_ROWS = 1024  # in a batch
_MANY_BYTES = 70 << 30  # of memory, which only GPUs with fast memory have
_HOPPER, _AMPERE = (9, 0), (8, 0)


@dataclass(frozen=True)
class GpuMemory:
    """A GPU, and the memory that it has left for rows and cache."""

    name: str
    capability: tuple[int, int]
    processors: int
    total_bytes: int
    free_bytes: int  # once the weights are loaded

    @property
    def batch(self) -> int:
        """Rows in one frame step."""
        fast = self.total_bytes >= _MANY_BYTES
        each = 8 if fast and self.capability >= _HOPPER else 4 if fast and self.capability >= _AMPERE else 2
        return min(_MOST_ROWS, power_of_two(each * self.processors))

    def room(self, spec: ModelSpec) -> Room:
        batch = min(self.batch, spec.full_batch or self.batch)
        return Room(batch, self.free_bytes, row_bytes(spec), spec.kv_token_bytes)

    def likely_kv_tokens(self, spec: ModelSpec, config: EngineConfig) -> int:
        """How many positions `kv_cache.py` will find room for."""
        left = self.free_bytes - (config.max_rows or 1) * row_bytes(spec)
        return max(config.block_tokens, int(left * config.kv_memory_fraction) // spec.kv_token_bytes)


def gpu_memory(device: torch.device, weight_bytes: int = 0, share: float = 1.0) -> GpuMemory:
    """`weight_bytes` are yet to be loaded, and so are not free."""
    p = torch.cuda.get_device_properties(device)
    left = max(0, free_bytes(device, share) - weight_bytes)
    return GpuMemory(p.name, (p.major, p.minor), p.multi_processor_count, p.total_memory, left)


def free_bytes(device: torch.device, share: float = 1.0, held: int = 0) -> int:
    """What this process may still take: no more than is free, nor than its share has left. `held` bytes are its own
    too, which torch does not count."""
    free, total = torch.cuda.mem_get_info(device)
    left = int(share * total) - torch.cuda.memory_reserved(device) - held
    return free if share == 1 else max(0, min(free, left))


def row_bytes(spec: ModelSpec) -> int:
    """What a row takes beside the cache."""
    return sum(math.prod(f.shape) * f.dtype.itemsize for f in (*spec.staged, *spec.state))
