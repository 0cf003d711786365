"""The KV memory: one tensor, never filled (readers mask exactly), sized from what the device has left."""

from __future__ import annotations

import torch
from torch import Tensor

from sonant.config import EngineConfig
from sonant.errors import ConfigError
from sonant.models.base import ModelSpec

_CPU_TOKENS_PER_ROW = 1024


def token_bytes(spec: ModelSpec) -> int:
    return 2 * spec.kv_layers * spec.kv_heads * spec.kv_head_dim * spec.kv_dtype.itemsize


def allocate_kv(spec: ModelSpec, config: EngineConfig, device: torch.device) -> Tensor:
    """[layers, 2, blocks, block_tokens, heads, dim]; block 0 is scratch."""
    tokens = config.kv_tokens
    if tokens is None and device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        tokens = int(free * config.kv_memory_fraction) // token_bytes(spec)
    elif tokens is None:
        tokens = (config.max_rows or 1) * min(_CPU_TOKENS_PER_ROW, config.max_positions)
    blocks = tokens // config.block_tokens
    if blocks < 1:
        raise ConfigError(
            f"there is memory for {tokens} positions of KV cache, less than one block of {config.block_tokens}; "
            "free GPU memory or set kv_tokens"
        )
    # blocks beyond what all rows can ever reserve would only sit there
    blocks = min(blocks, (config.max_rows or 1) * -(-config.max_positions // config.block_tokens))
    shape = (spec.kv_layers, 2, blocks + 1, config.block_tokens, spec.kv_heads, spec.kv_head_dim)
    return torch.empty(shape, dtype=spec.kv_dtype, device=device)
