"""Attention of long prefills by Hopper's wgmma: `source/prefill_wgmma.cu`.

It takes a cache of bfloat16 if a whole number of its pages fills a tile. All other caches are for `prefill.cu`, and so
are GPUs later than Hopper, which have no wgmma.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor

from sonant.kernels.cuda.compiler import Program, obstacle_to
from sonant.kernels.cuda.kernel import CudaKernel
from sonant.kernels.cuda.tensor_map import tensor_map
from sonant.kernels.gpu import Gpu, gpu_of

QUERIES = (64, 128)  # of a block: one warpgroup's, or two's
_DIMS = (64, 128)
_KEYS, _STAGES, _ITEMS = 128, 2, 2  # as prefill_wgmma.cuh has them
_COLUMNS = 64  # of a line
_PROCESSORS = 132  # of an H100 or H200
_LOG2_E = math.log2(math.e)
_ARGS = struct.Struct("<128s128s5Q8if52x")  # PrefillWgmmaArgs


@cache
def kernel_of(dim: int, queries: int) -> CudaKernel:
    tiles = _STAGES * 2 * _KEYS * dim * 2
    barriers = 8 * (2 * _ITEMS + 4 * _STAGES)
    shared = queries * dim * 2 + tiles + _ITEMS * 16 + barriers
    program = Program("prefill_wgmma.cu", {"HEAD_DIM": dim}, features="a")
    return CudaKernel(program, f"paged_prefill_wgmma_{queries}", _ARGS, shared, threads=128 + 2 * queries)


def programs() -> Iterator[Program]:
    for dim in _DIMS:
        yield kernel_of(dim, QUERIES[0]).program


def obstacle(gpu: Gpu) -> str | None:
    """Why these kernels do not run on this GPU; None: they do."""
    return obstacle_to(programs(), gpu, on_later=False)


def refusal(cache: Tensor) -> str | None:
    """Why a cache that our other kernels take is not for this one; None: it is."""
    block_tokens = cache.shape[2]
    if cache.dtype != torch.bfloat16:
        return f"the cache is {cache.dtype}, not bfloat16"
    if block_tokens % 8 or _KEYS % block_tokens:
        return f"blocks of {block_tokens} positions, not 8, 16, 32, 64 or 128"
    return None


def is_ready(cache: Tensor, queries: int) -> bool:
    """Whether a launch over a cache without an `attention.refusal` will work."""
    gpu = gpu_of(cache.device)
    if refusal(cache) is not None or (gpu is not None and obstacle(gpu) is not None):
        return False
    return kernel_of(cache.shape[-1], queries).is_ready(cache.device)


def prefill(
    q: Tensor, cache: Tensor, tables: Tensor, positions: Tensor, span_blocks: int, queries: int, *,
    processors: int = _PROCESSORS,
) -> Tensor:  # fmt: skip
    """Call it only where it `is_ready`."""
    from sonant.kernels.triton.split_k import counters

    batch, length, heads, dim = q.shape
    blocks, block_tokens, kv_heads = cache.shape[1:4]
    q, positions, out = q.contiguous(), positions.contiguous(), q.new_empty(q.shape)
    items = -(-length * (heads // kv_heads) // queries) * batch * kv_heads
    owner = cache if cache._base is None else cache._base  # as in triton/paged.py
    kernel_of(dim, queries).launch(
        q.device, (min(items, processors), 1, 1), *(_map_of(plane, blocks, block_tokens, kv_heads) for plane in cache),
        q.data_ptr(), tables.data_ptr(), positions.data_ptr(), out.data_ptr(), counters(owner, 1, 2).data_ptr(),
        tables.stride(0), positions.dtype == torch.int64, batch, length, heads, kv_heads, block_tokens,
        min(span_blocks, tables.shape[1]) * block_tokens, dim**-0.5 * _LOG2_E,
    )  # fmt: skip
    return out


def _map_of(plane: Tensor, blocks: int, block_tokens: int, kv_heads: int) -> bytes:
    """The tensor map of keys or values: a page is a row, its positions are lines."""
    width = kv_heads * plane.shape[-1]
    return tensor_map(plane.data_ptr(), (blocks, block_tokens, width), block_tokens * width, block_tokens, _COLUMNS)
