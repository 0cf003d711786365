"""The KV memory: a tensor for each group of layers, not initialized (readers mask exactly), and sized from what the
device has left. A block has the same number in all of them, so that one table serves them all.

In eight bits (`kv_cache_dtype`) values are e4m3 without scales, as in other engines unless a checkpoint brings scales:
the type has the same relative precision from 1/64 up to 448, so a scale would only move its ends, and larger values
become 448. Keys and values of published models are of the order of 1 to 100, since they are normalized, or projected
from what is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sonant.config import EngineConfig
from sonant.engine.residents import Residents
from sonant.engine.room import free_bytes
from sonant.errors import ConfigError
from sonant.kernels.gpu import Gpu, gpu_of
from sonant.models.spec import ModelSpec

_CPU_TOKENS_PER_ROW = 1024
_ADA = (8, 9)  # the first GPUs that convert eight-bit floating point


def allocate_kv(
    spec: ModelSpec, config: EngineConfig, device: torch.device, residents: Residents | None = None
) -> dict[str, Tensor]:
    """By group name, [layers, 2, blocks, block_tokens, heads, dim]; block 0 is scratch."""
    check_type(spec, gpu_of(device))
    blocks = block_count(spec, config, device, 0 if residents is None else residents.held_bytes) + 1
    found = {}
    for g in spec.kv:
        shape = (g.layers, 2, blocks, config.block_tokens, g.heads, g.head_dim)
        if residents is None:
            found[g.name] = torch.empty(shape, dtype=g.dtype, device=device)
        else:
            found[g.name] = residents.empty(shape, g.dtype)
    return found


def check_type(spec: ModelSpec, gpu: Gpu | None) -> None:
    """Raise a `ConfigError` if this GPU's kernels cannot read such a cache. `gpu` is None on a CPU, where torch can."""
    eight_bits = any(group.dtype.itemsize == 1 for group in spec.kv)
    if eight_bits and gpu is not None and gpu.capability < _ADA:
        has = ".".join(map(str, gpu.capability))
        raise ConfigError(
            f"kv_cache_dtype fp8 needs a GPU of compute capability 8.9 or later, and {gpu.name} has {has}; leave it out"
        )


def block_count(spec: ModelSpec, config: EngineConfig, device: torch.device, held: int = 0) -> int:
    """Not counting the scratch block; `held` bytes are ours beside torch's, see `room.free_bytes`."""
    tokens = config.kv_tokens
    holders = (config.max_rows or 1) + (config.max_parked or 0)  # a parked request keeps its blocks
    if tokens is None and device.type == "cuda":
        tokens = int(free_bytes(device, config.gpu_share, held) * config.kv_memory_fraction) // spec.kv_token_bytes
    elif tokens is None:
        tokens = holders * min(_CPU_TOKENS_PER_ROW, config.max_positions)
    blocks = tokens // config.block_tokens
    if blocks < 1:
        raise ConfigError(
            f"there is memory for {tokens} positions of KV cache, less than one block of {config.block_tokens}; "
            "free GPU memory or set kv_tokens"
        )
    # More blocks than all holders can reserve would never be used.
    return min(blocks, holders * -(-config.max_positions // config.block_tokens))
