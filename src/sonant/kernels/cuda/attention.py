"""Attention over the paged cache in CUDA C++: the wrappers of `source/decode.cu` and `source/prefill.cu`.

They take what the reference takes (kernels/reference/transformer.py). What they have no kernel for (another head size,
type or layout) goes to Triton's. Lengths stay on the device; grids follow from shapes alone, so one CUDA graph serves
every length.

`paged_step` reads positions, tables and the keys and values of earlier positions before the kernel in front of it has
ended: that hides most of the way to them. It is right because none of it comes from a kernel with a dependent launch of
its own (kernels/triton/pdl.py): a frame's lines are gathered, and the last frame's cache was left, by torch's, after
which the stream starts afresh. Only the fused projection and the rotations are waited for.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from functools import cache
from itertools import product

import torch
from torch import Tensor

from sonant.errors import ConfigError
from sonant.kernels.cuda.compiler import Program, unavailable
from sonant.kernels.cuda.kernel import CudaKernel
from sonant.kernels.gpu import Gpu
from sonant.kernels.reference import Heads

_HOPPER = (9, 0)
_DIMS = (64, 128)
_CACHES = {torch.bfloat16: 2, torch.float8_e4m3fn: 1}  # and the bytes of a value
_MOST_SHARE = 16  # query heads of one key-value head: the rows of a tensor core's tile
_MOST_SPLITS = 64  # as decode.cu has it
_PROCESSORS = 132  # of an H100 or H200
_BLOCKS = 4 * _PROCESSORS  # that a decode step should have, if its rows are long enough
_LEAST_SHARE = 256  # positions of a long row: fewer are put together more slowly than they gather
_MOST_ALONE = 512  # positions of a row that one block has alone
_LOG2_E = math.log2(math.e)
WHAT, ELSE = "attention", "heads of other sizes than 64 and 128, or not in bfloat16, go to Triton"
VARIABLE = "SONANT_ATTENTION"
CHOICES = ("auto", "cuda", "triton", "torch")

_DECODE = struct.Struct("<11Qq7iI6i2f")  # DecodeArgs
_PREFILL = struct.Struct("<5Qq6iIif4x")  # PrefillArgs


@cache
def decode_kernel(dim: int, stages: int, kv_bytes: int = 2) -> CudaKernel:
    """With rings of `stages` times 32 KiB: one block on a processor with 4 of them, two with 3, three with 2."""
    return CudaKernel(
        _program("decode.cu", dim, kv_bytes), f"paged_decode_{stages}", _DECODE, (stages << 15) + 36 * dim
    )


@cache
def prefill_kernel(dim: int, queries: int, kv_bytes: int = 2) -> CudaKernel:
    shared = queries * 2 * dim + 2 * 2 * 64 * kv_bytes * dim + 4 * queries + 32
    return CudaKernel(_program("prefill.cu", dim, kv_bytes), f"paged_prefill_{queries}", _PREFILL, shared)


def _program(source: str, dim: int, kv_bytes: int) -> Program:
    return Program(source, {"HEAD_DIM": dim, "KV_BYTES": kv_bytes})


def programs() -> Iterator[Program]:
    for dim, kv_bytes in product(_DIMS, _CACHES.values()):
        yield decode_kernel(dim, 2, kv_bytes).program
        yield prefill_kernel(dim, 64, kv_bytes).program


def wanted() -> str:
    """What the environment asks for: kernels are found before any config is."""
    choice = os.environ.get(VARIABLE, "").strip().lower() or "auto"
    if choice not in CHOICES:
        raise ConfigError(f"{VARIABLE} must be one of {', '.join(CHOICES)}, not {choice!r}")
    return choice


def obstacle(gpu: Gpu) -> str | None:
    """Why none of this runs there; None: it does."""
    if gpu.capability < _HOPPER:
        return f"it needs compute capability 9.0, and {gpu.name} has {gpu.capability[0]}.{gpu.capability[1]}"
    return unavailable(programs(), gpu.arch)


def refusal(values: Tensor, heads: int, cache: Tensor, tables: Tensor, positions: Tensor) -> str | None:
    """Why these tensors are not for our kernels; None: they are."""
    _, _, block_tokens, kv_heads, dim = cache.shape
    if values.dtype != torch.bfloat16 or cache.dtype not in _CACHES:
        return f"values are {values.dtype} and the cache is {cache.dtype}, not bfloat16, or e4m3 for the cache"
    if dim not in _DIMS:
        return f"heads have {dim} values, not 64 or 128"
    if heads % kv_heads or heads // kv_heads > _MOST_SHARE:
        return f"{heads} heads over {kv_heads} are no whole share of at most {_MOST_SHARE}"
    if cache.stride()[1:] != (block_tokens * kv_heads * dim, kv_heads * dim, dim, 1) or tables.stride(1) != 1:
        return "the cache or its tables are not in one piece"
    if tables.dtype != torch.int32 or positions.dtype not in (torch.int32, torch.int64):
        return f"tables are {tables.dtype} and positions {positions.dtype}, not int32"
    if tables.shape[1] * block_tokens * block_tokens >= 1 << 32:
        return f"blocks of {block_tokens} positions are too large to be counted"
    return None


def _step_refusal(qkv: Tensor, heads: Heads, cache: Tensor, tables: Tensor, positions: Tensor) -> str | None:
    gains = [gain for gain in (heads.q_weight, heads.k_weight) if gain is not None]
    if any(values.dtype != torch.bfloat16 for values in (heads.cos, heads.sin, *gains)):
        return "gains or rotations are not bfloat16"
    return refusal(qkv, heads.heads, cache, tables, positions)


def paged_attention(q: Tensor, cache: Tensor, tables: Tensor, positions: Tensor, span_blocks: int) -> Tensor:
    batch, length, heads, dim = q.shape
    kernel = _prefill_for(batch, length, heads, cache)
    if refusal(q, heads, cache, tables, positions) is not None or not kernel.is_ready(q.device):
        from sonant.kernels.triton import paged

        return paged.paged_attention(q, cache, tables, positions, span_blocks)
    block_tokens, kv_heads = cache.shape[2:4]
    q, positions = q.contiguous(), positions.contiguous()
    out = q.new_empty(q.shape)
    queries = int(kernel.entry.removeprefix("paged_prefill_"))
    kernel.launch(
        q.device, (batch * kv_heads, -(-length * (heads // kv_heads) // queries), 1),
        q.data_ptr(), cache.data_ptr(), tables.data_ptr(), positions.data_ptr(), out.data_ptr(), cache.stride(0),
        tables.stride(0), positions.dtype == torch.int64, length, heads, kv_heads, block_tokens, magic(block_tokens),
        min(span_blocks, tables.shape[1]) * block_tokens, dim**-0.5 * _LOG2_E,
    )  # fmt: skip
    return out


def _prefill_for(batch: int, length: int, heads: int, cache: Tensor) -> CudaKernel:
    """Large tiles read less for each query; small ones where large ones would leave processors idle."""
    kv_heads, dim = cache.shape[3:]
    blocks = batch * kv_heads * -(-length * (heads // kv_heads) // 128)
    known = dim if dim in _DIMS else _DIMS[-1]
    return prefill_kernel(known, 128 if blocks >= _PROCESSORS else 64, _CACHES.get(cache.dtype, 2))


def paged_step(
    qkv: Tensor, heads: Heads, cache: Tensor, tables: Tensor, positions: Tensor, span_blocks: int, *,
    splits: int | None = None, stages: int | None = None, early: bool = True,
) -> Tensor:  # fmt: skip
    """The options are for who measures: blocks that share a row at most, their rings, and reads before the wait."""
    from sonant.kernels.triton.split_k import counters, workspace

    batch, (block_tokens, kv_heads, dim) = len(qkv), cache.shape[2:]
    groups, share = batch * kv_heads, heads.heads // kv_heads
    splits = splits or splits_for(groups, span_blocks * block_tokens)
    known, kv_bytes = dim if dim in _DIMS else _DIMS[-1], _CACHES.get(cache.dtype, 2)
    kernel = decode_kernel(known, stages or stages_for(groups * splits), kv_bytes)
    if _step_refusal(qkv, heads, cache, tables, positions) is not None or not kernel.is_ready(qkv.device):
        from sonant.kernels.triton import paged

        return paged.paged_step(qkv, heads, cache, tables, positions, span_blocks)
    qkv, cos, sin = qkv.contiguous(), heads.cos.contiguous(), heads.sin.contiguous()
    out = qkv.new_empty(batch, 1, heads.heads, dim)
    norm = heads.q_weight is not None
    owner = cache if cache._base is None else cache._base  # as triton/paged.py has it
    partials = workspace(qkv, groups, splits, share * (dim + 4))
    gains = [w.data_ptr() for w in (heads.q_weight, heads.k_weight) if w is not None] or [0, 0]
    kernel.launch(
        qkv.device, (kv_heads, batch, splits),
        qkv.data_ptr(), *gains, cos.data_ptr(), sin.data_ptr(), cache.data_ptr(), tables.data_ptr(),
        positions.data_ptr(), out.data_ptr(), partials.data_ptr(), counters(owner, groups, splits).data_ptr(),
        cache.stride(0), tables.stride(0), positions.stride(0), positions.dtype == torch.int64,
        0 if len(cos) == 1 else dim, heads.heads, kv_heads, block_tokens, magic(block_tokens),
        tables.shape[1] * block_tokens, splits, _LEAST_SHARE, _MOST_ALONE, norm, early, heads.eps, dim**-0.5 * _LOG2_E,
    )  # fmt: skip
    return out


def splits_for(groups: int, span: int) -> int:
    """Blocks for one row and head, of rows that may be as long as `span`: as many as the GPU has room for, no share
    shorter than is worth it. How many of them have work the device decides, by each row's length."""
    return max(1, min(_BLOCKS // groups, _MOST_SPLITS, -(-span // _LEAST_SHARE)))


def stages_for(blocks: int) -> int:
    """The few blocks of a small grid have much on their way; those of a large one begin and end while others read.

    Measured on an H200: up to two waves of two blocks a processor, much on its way is worth more than a third block
    (64 rows × 300 and 1,024 positions: 23.9 and 65.0 µs against 26.6 and 73.6); with 256 rows × 200 it is the other
    way round (73.9 against 63.6).
    """
    return 4 if blocks <= _PROCESSORS else 3 if blocks <= 4 * _PROCESSORS else 2


def magic(block_tokens: int) -> int:
    """So that the upper half of a product with it is the quotient by block_tokens; 0 stands for a division by one."""
    return 0 if block_tokens == 1 else -(-(1 << 32) // block_tokens)
