"""Attention over the paged cache in CUDA C++: the wrappers of `source/decode.cu` and `source/prefill.cu`.

They take what the reference takes (kernels/reference/transformer.py). Inputs without a kernel here (another head size,
type or layout) go to Triton's. Lengths stay on the device; grids follow from shapes alone, so one CUDA graph serves
every length.

`paged_step` reads positions, tables and the keys and values of earlier positions before the previous kernel has ended,
which hides most of their latency. This is correct because no kernel with a dependent launch (kernels/triton/pdl.py) has
written them since the last one without: torch's kernels gather a frame's lines, after all that the last frame left in
the cache, and the stream starts afresh after them. It waits only for the fused projection and the rotations.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from sonant.kernels.cuda import prefill_wgmma
from sonant.kernels.cuda.compiler import Program, obstacle_to
from sonant.kernels.cuda.exchange import exchange_buffer
from sonant.kernels.cuda.kernel import CudaKernel
from sonant.kernels.gpu import Gpu
from sonant.kernels.reference import Heads

_DIMS = (64, 128)
_CACHES = {torch.bfloat16: 2, torch.float8_e4m3fn: 1}  # a cache's types, and the bytes of a value
_QUERIES = (8, 16)  # query heads of one key-value head that a tensor core's tile has room for: in columns, in rows
_MOST_SPLITS = 64  # as in shares.cuh
_PROCESSORS = 132  # of an H100 or H200
_RING_UNIT, _TABLE_BYTES = 8192, 4096  # as in decode.cuh and decode.cu
_BLOCKS = 4 * _PROCESSORS  # that a decode step of many rows should have, if they are long enough
_LEAST_SHARE = 256  # positions of a long row: combining smaller shares would take longer than attention over them
_MOST_ALONE = 512  # positions of a row that one block has alone
_COHORT = 32  # rows that have helpers in common: blocks that share the long ones among them
_POSTED = 4 * _PROCESSORS  # parts of a launch that have room: those of the largest grid, and one more for each group
_LOG2_E = math.log2(math.e)
WHAT, ELSE = "attention", "heads of other sizes than 64 and 128, or not in bfloat16, go to Triton"
VARIABLE = "SONANT_ATTENTION"

_DECODE = struct.Struct("<11Qq7iI9i2f2i4x")  # DecodeArgs
_PREFILL = struct.Struct("<5Qq6iIif4x")  # PrefillArgs


class DecodeForm(NamedTuple):
    """A block of a decode step."""

    warps: int
    stages: int  # times 8 KiB: each warp's ring for keys and values in flight
    resident: int  # blocks that a processor has room for
    holds_table: bool = False
    blocks: int = 0  # of the whole grid, which few long rows share (decode_long.cu); 0: the grid follows from the rows
    uneven: bool = False  # for long rows: some blocks have two units more than others, so that not all end at once
    let_in: int = -1  # for long rows: the chunk of a warp after which the next launch may begin; -1: at once

    def shared_bytes(self, dim: int, queries: int) -> int:
        ring = self.warps * self.stages * _RING_UNIT
        return ring + (2 * queries + 4) * dim + _TABLE_BYTES * self.holds_table


ALONE, PAIR, WIDE = DecodeForm(4, 4, 1, holds_table=True), DecodeForm(6, 2, 2), DecodeForm(4, 3, 2)
NARROW, SMALL = DecodeForm(2, 3, 4), DecodeForm(2, 2, 6)
FORMS = (ALONE, PAIR, WIDE, NARROW, SMALL)
# No rule chooses these yet: an unfinished `LONG` is said to have taken 9.6 µs for 1 × 8,192, where `ALONE` takes 12.0,
# and tests/gpu_long_row.py has not been run with the code as it is.
LONG, LONG_PAIR = DecodeForm(8, 3, 1, blocks=116), DecodeForm(4, 3, 2, blocks=248)


class PrefillForm(NamedTuple):
    """A block of a prefill."""

    queries: int  # that it has at once: 64 or 128
    wgmma: bool = False  # prefill_wgmma.cu; no rule chooses it until tests/gpu_attention.py --sweep has been run


@cache
def decode_kernel(dim: int, form: DecodeForm, kv_bytes: int = 2, share: int = 1) -> CudaKernel:
    queries = next((n for n in _QUERIES if share <= n), _QUERIES[-1])
    program, shared = _decode_program(dim, kv_bytes, queries, long=form.blocks > 0), form.shared_bytes(dim, queries)
    entry = f"paged_decode_{'long_' * (form.blocks > 0)}{form.warps}x{form.stages}"
    return CudaKernel(program, entry, _DECODE, shared, threads=32 * form.warps, waits=form.blocks > 0)


@cache
def prefill_kernel(dim: int, queries: int, kv_bytes: int = 2) -> CudaKernel:
    shared = queries * 2 * dim + 2 * 2 * 64 * kv_bytes * dim + 4 * queries + 32
    program = Program("prefill.cu", {"HEAD_DIM": dim, "KV_BYTES": kv_bytes})
    return CudaKernel(program, f"paged_prefill_{queries}", _PREFILL, shared)


def _decode_program(dim: int, kv_bytes: int, queries: int, *, long: bool) -> Program:
    source = "decode_long.cu" if long else "decode.cu"
    return Program(source, {"HEAD_DIM": dim, "KV_BYTES": kv_bytes, "QUERIES": queries})


def programs() -> Iterator[Program]:
    for dim, kv_bytes in product(_DIMS, _CACHES.values()):
        for queries in _QUERIES:
            yield _decode_program(dim, kv_bytes, queries, long=False)
        yield prefill_kernel(dim, 64, kv_bytes).program


def trial_programs() -> Iterator[Program]:
    """Programs of forms that no rule chooses yet: they are built for measurements, and not part of a wheel."""
    for dim, kv_bytes, queries in product(_DIMS, _CACHES.values(), _QUERIES):
        yield _decode_program(dim, kv_bytes, queries, long=True)
    yield from prefill_wgmma.programs()


def obstacle(gpu: Gpu) -> str | None:
    """Why these kernels do not run on this GPU; None: they do."""
    return obstacle_to(programs(), gpu)


def refusal(values: Tensor, heads: int, cache: Tensor, tables: Tensor, positions: Tensor) -> str | None:
    """Why these tensors are not for our kernels; None: they are."""
    _, _, block_tokens, kv_heads, dim = cache.shape
    if values.dtype != torch.bfloat16 or cache.dtype not in _CACHES:
        return f"values are {values.dtype} and the cache is {cache.dtype}, not bfloat16, or e4m3 for the cache"
    if dim not in _DIMS:
        return f"heads have {dim} values, not 64 or 128"
    if heads % kv_heads or heads // kv_heads > _QUERIES[-1]:
        return f"{heads} heads over {kv_heads} are no whole share of at most {_QUERIES[-1]}"
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


def paged_attention(
    q: Tensor, cache: Tensor, tables: Tensor, positions: Tensor, span_blocks: int, *, form: PrefillForm | None = None
) -> Tensor:
    """`form` is for measurements; where its kernel cannot run, another one does."""
    batch, length, heads, dim = q.shape
    form = form or prefill_form_for(batch, length, heads, cache)
    refused = refusal(q, heads, cache, tables, positions)
    if form.wgmma and refused is None and prefill_wgmma.is_ready(cache, form.queries):
        return prefill_wgmma.prefill(q, cache, tables, positions, span_blocks, form.queries)
    kernel = prefill_kernel(dim if dim in _DIMS else _DIMS[-1], form.queries, _CACHES.get(cache.dtype, 2))
    if refused is not None or not kernel.is_ready(q.device):
        from sonant.kernels.triton import paged

        return paged.paged_attention(q, cache, tables, positions, span_blocks)
    block_tokens, kv_heads = cache.shape[2:4]
    q, positions = q.contiguous(), positions.contiguous()
    out = q.new_empty(q.shape)
    kernel.launch(
        q.device, (batch * kv_heads, -(-length * (heads // kv_heads) // form.queries), 1),
        q.data_ptr(), cache.data_ptr(), tables.data_ptr(), positions.data_ptr(), out.data_ptr(), cache.stride(0),
        tables.stride(0), positions.dtype == torch.int64, length, heads, kv_heads, block_tokens, magic(block_tokens),
        min(span_blocks, tables.shape[1]) * block_tokens, dim**-0.5 * _LOG2_E,
    )  # fmt: skip
    return out


def prefill_form_for(batch: int, length: int, heads: int, cache: Tensor) -> PrefillForm:
    """Large tiles, which read less for each query, or small ones where large ones would leave processors idle."""
    kv_heads = cache.shape[3]
    blocks = batch * kv_heads * -(-length * (heads // kv_heads) // 128)
    return PrefillForm(128 if blocks >= _PROCESSORS else 64)


def paged_step(
    qkv: Tensor, heads: Heads, cache: Tensor, tables: Tensor, positions: Tensor, span_blocks: int, *,
    splits: int | None = None, form: DecodeForm | None = None, early: bool = True,
    helpers: int | None = None,
) -> Tensor:  # fmt: skip
    """The options are for measurements: how many blocks share a row at most, their form, whether they read before the
    wait, and helpers for each 32 rows, which must be 0 where `splits` is given."""
    from sonant.kernels.triton.scaled_product import mixed_dtype
    from sonant.kernels.triton.split_k import counters, workspace

    batch, (block_tokens, kv_heads, dim) = len(qkv), cache.shape[2:]
    groups, share = batch * kv_heads, heads.heads // kv_heads
    span = span_blocks * block_tokens
    if form and form.blocks:
        splits, helpers = -(-form.blocks // groups), 0
    helpers = (0 if splits else helpers_for(groups, span)) if helpers is None else helpers
    splits = 1 + helpers if helpers else splits or splits_for(groups, span)
    known, kv_bytes = dim if dim in _DIMS else _DIMS[-1], _CACHES.get(cache.dtype, 2)
    form = form or form_for(groups, 1 if helpers else splits, kv_bytes)
    kernel = decode_kernel(known, form, kv_bytes, share)
    if _step_refusal(qkv, heads, cache, tables, positions) is not None or not kernel.is_ready(qkv.device):
        from sonant.kernels.triton import paged

        return paged.paged_step(qkv, heads, cache, tables, positions, span_blocks)
    qkv, cos, sin = qkv.contiguous(), heads.cos.contiguous(), heads.sin.contiguous()
    out = qkv.new_empty(batch, 1, heads.heads, dim, dtype=mixed_dtype(qkv, heads))
    norm = heads.q_weight is not None
    owner = cache if cache._base is None else cache._base  # as in triton/paged.py
    gains = [w.data_ptr() for w in (heads.q_weight, heads.k_weight) if w is not None] or [0, 0]
    if form.blocks:
        grid = (max(form.blocks, groups), 1, 1)
        partials, arrivals = exchange_buffer(owner, _POSTED * _QUERIES[-1] * (dim + 4)), 0
    else:
        grid = (kv_heads, batch + helpers * -(-batch // _COHORT), 1 if helpers else splits)
        partials = workspace(qkv, groups, splits, share * (dim + 4))
        arrivals = counters(owner, groups, splits).data_ptr()
    kernel.launch(
        qkv.device, grid,
        qkv.data_ptr(), *gains, cos.data_ptr(), sin.data_ptr(), cache.data_ptr(), tables.data_ptr(),
        positions.data_ptr(), out.data_ptr(), partials.data_ptr(), arrivals,
        cache.stride(0), tables.stride(0), positions.stride(0), positions.dtype == torch.int64,
        0 if len(cos) == 1 else dim, heads.heads, kv_heads, block_tokens, magic(block_tokens),
        tables.shape[1] * block_tokens, splits, _LEAST_SHARE, _MOST_ALONE, norm, early, batch, helpers,
        out.element_size(), heads.eps, dim**-0.5 * _LOG2_E, form.uneven, form.let_in,
    )  # fmt: skip
    return out


def splits_for(groups: int, span: int) -> int:
    """How many blocks share one row and head, if rows may be as long as `span`: as many as the GPU has room for, with
    no share too short to be worth it. The device decides by each row's length how many of them have work.

    Few rows have one block on each processor, unless that leaves many idle: reads of more blocks' rings would delay
    partial results, which are combined while the next launch already reads. Measured on an H200, in brackets as it was
    with up to 528 blocks and products not yet transposed: 1 row × 8,192 and 16,384 positions 12.3 and 20.5 µs (14.2 and
    31.7), 4 × 8,192 35.2 (39.2), 16 × 300 7.6 (8.7).
    """
    busy = _PROCESSORS // groups * groups
    most = _PROCESSORS if 4 * busy >= 3 * _PROCESSORS else _BLOCKS
    return max(1, min(most // groups, _MOST_SPLITS, -(-span // _LEAST_SHARE)))


def helpers_for(groups: int, span: int) -> int:
    """How many helpers each 32 rows have: blocks that come after those of all rows, and share long rows with them.

    Measured on an H200 (µs): among 256 rows of 30 to 400 positions one of 4,000 takes 165 without helpers, 71 with 6,
    among 64 rows 138 without, 43 with 3; where all rows are short they cost 0.1. More than 3 cost 64 × 90 1.1, since
    the blocks are then more than one wave.
    """
    if groups <= _PROCESSORS * WIDE.resident or span <= _MOST_ALONE:
        return 0
    return 3 if form_for(groups, 1) == NARROW else 6


def form_for(groups: int, splits: int, kv_bytes: int = 2) -> DecodeForm:
    """Few blocks have much in flight each. Many blocks are small, so that a processor has room for many, and some begin
    and end while others read: a short row's block spends most of its life before its first bytes and after its last.

    Measured on an H200 (µs; rows × positions, as it was with blocks of four warps only, and now): 16 × 90 4.5 and 3.3,
    64 × 90 10.9 and 8.4, 64 × 4,096 239.4 and 239.2, 128 × 90 18.8 and 16.8, 256 × 90 33.6 and 28.0, 256 × 400 103.2
    and 98.2. Blocks of one warp are faster still at 256 × 90 (26.3), but a row of 400 among shorter ones then takes as
    long as all the others. Up to two waves the form that fills its last wave best is chosen: half a wave of small
    blocks is unevenly distributed over the processors (64 × 1,024: 82 instead of 61).
    """
    if groups * splits <= _PROCESSORS:
        return PAIR if 2 * groups > _PROCESSORS or kv_bytes == 1 else ALONE
    if groups <= _PROCESSORS * WIDE.resident:
        return WIDE
    if groups > _PROCESSORS * NARROW.resident * 2:
        return SMALL
    return max(NARROW, SMALL, key=lambda form: groups / -(-groups // (_PROCESSORS * form.resident)) / form.resident)


def magic(block_tokens: int) -> int:
    """The factor m such that the upper half of m · n is n // block_tokens; 0 stands for a division by one."""
    return 0 if block_tokens == 1 else -(-(1 << 32) // block_tokens)
