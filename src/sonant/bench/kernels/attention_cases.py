"""Attention over long contexts, beyond any family's usual shapes, beside the best kernels that others have for it.

There are 16 query heads and 8 KV heads of 128 values, and blocks of 16 positions are scattered. Our decode step also
normalises and rotates heads and writes the cache; FlashAttention gets ready heads, and contiguous keys and values. Only
our kernels read a cache of eight bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from sonant.bench.kernels.case import Call, Case, CaseMaker, Rival
from sonant.kernels.reference import Heads

DECODES = ((64, 1024), (64, 4096), (1, 8192))  # rows, positions
PREFILLS = ((4, 2048),)
EIGHT_BITS = torch.float8_e4m3fn
_HEADS, _KV_HEADS, _DIM, _BLOCK, _EPS = 16, 8, 128, 16, 1e-6


class AttentionCases(CaseMaker):
    def every(self) -> Iterator[Case]:
        for cached in (self.dtype, EIGHT_BITS):
            for rows, span in DECODES:
                yield self.decode(rows, span, cached)
            for rows, span in PREFILLS:
                yield self.prefill(rows, span, cached)

    def decode(self, rows: int, span: int, cached: torch.dtype | None = None) -> Case:
        cached = cached or self.dtype
        tables, blocks = self._tables(rows, span)
        positions = torch.full((rows, 1), span - 1, dtype=torch.int32, device=self.device)
        qkv = self.normal(rows, 1, (_HEADS + 2 * _KV_HEADS) * _DIM)
        gain = self.normal(_DIM)
        cos, sin = (self.normal(rows, 1, 1, _DIM) for _ in range(2))
        heads = Heads(gain, gain, cos, sin, _HEADS, _KV_HEADS, _EPS)

        def make() -> Call:
            return Call((qkv, heads, self._cache(rows, blocks, cached), tables, positions, blocks), {})

        read = 2 * cached.itemsize * rows * span * _KV_HEADS * _DIM
        moved = read + self.item * (qkv.numel() + rows * _HEADS * _DIM)
        rivals = {"triton": Rival(lambda call: call, _triton("paged_step"))} if find_spec("triton") else {}
        if cached is self.dtype:
            rivals["flash"] = Rival(partial(_dense_decode, rows=rows, span=span), _flash)
            if find_spec("flashinfer"):
                rivals["flashinfer"] = Rival(partial(_flashinfer_decode, rows=rows, span=span), _flashinfer_run)
        flops = 4 * rows * span * _HEADS * _DIM
        return Case("paged_step", self._where(span, cached), rows, make, read, moved, flops, rivals=rivals)

    def prefill(self, rows: int, span: int, cached: torch.dtype | None = None) -> Case:
        cached = cached or self.dtype
        tables, blocks = self._tables(rows, span)
        positions = torch.arange(span, device=self.device).expand(rows, -1).contiguous()
        q = self.normal(rows, span, _HEADS, _DIM)

        def make() -> Call:
            return Call((q, self._cache(rows, blocks, cached), tables, positions, blocks), {})

        read = 2 * cached.itemsize * rows * span * _KV_HEADS * _DIM
        rivals = {"triton": Rival(lambda call: call, _triton("paged_attention"))} if find_spec("triton") else {}
        if cached is self.dtype:
            rivals["flash"] = Rival(partial(_dense_prefill, rows=rows, span=span), partial(_flash, causal=True))
            if find_spec("flashinfer"):
                rivals["flashinfer"] = Rival(partial(_flashinfer_prefill, rows=rows, span=span), _flashinfer_run)
        moved, flops = read + 2 * self.item * q.numel(), 2 * rows * span * (span + 1) * _HEADS * _DIM
        where = self._where(span, cached)
        return Case("paged_attention", where, rows * span, make, read, moved, flops, rivals=rivals)

    def _where(self, span: int, cached: torch.dtype) -> str:
        return f"long {span} positions" + (" in eight bits" if cached is EIGHT_BITS else "")

    def _tables(self, rows: int, span: int) -> tuple[Tensor, int]:
        blocks = -(-span // _BLOCK)
        order = torch.randperm(rows * blocks, generator=torch.Generator().manual_seed(0))
        return order.view(rows, blocks).int().to(self.device), blocks

    def _cache(self, rows: int, blocks: int, cached: torch.dtype) -> Tensor:
        return self.normal(2, rows * blocks, _BLOCK, _KV_HEADS, _DIM).to(cached)


def _triton(op: str) -> Any:
    def run(*args: Any) -> Tensor:
        from sonant.kernels.triton import paged

        return getattr(paged, op)(*args)

    return run


def _dense_decode(call: Call, rows: int, span: int) -> Call:
    qkv, _, cache, tables = call.args[:4]
    return _dense(qkv.view(rows, 1, -1, _DIM)[:, :, :_HEADS].contiguous(), cache, tables, rows, span)


def _dense_prefill(call: Call, rows: int, span: int) -> Call:
    q, cache, tables = call.args[:3]
    return _dense(q, cache, tables, rows, span)


def _dense(q: Tensor, cache: Tensor, tables: Tensor, rows: int, span: int) -> Call:
    keys, values = (plane[tables.long()].view(rows, -1, _KV_HEADS, _DIM)[:, :span] for plane in cache)
    return Call((q.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)), {})


def _flash(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)


def _flashinfer_decode(call: Call, rows: int, span: int) -> Call:
    import flashinfer  # type: ignore[import-not-found]

    qkv, _, cache, tables = call.args[:4]
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(_flashinfer_workspace(qkv.device), "NHD")
    wrapper.plan(*_pages(tables, span), _HEADS, _KV_HEADS, _DIM, _BLOCK, q_data_type=qkv.dtype, kv_data_type=qkv.dtype)
    return Call((wrapper, qkv.view(rows, -1, _DIM)[:, :_HEADS].contiguous(), (cache[0], cache[1])), {})


def _flashinfer_prefill(call: Call, rows: int, span: int) -> Call:
    import flashinfer

    q, cache, tables = call.args[:3]
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(_flashinfer_workspace(q.device), "NHD")
    starts = torch.arange(rows + 1, dtype=torch.int32, device=q.device) * span
    options = {"causal": True, "q_data_type": q.dtype, "kv_data_type": q.dtype}
    wrapper.plan(starts, *_pages(tables, span), _HEADS, _KV_HEADS, _DIM, _BLOCK, **options)
    return Call((wrapper, q.flatten(0, 1), (cache[0], cache[1])), {})


def _pages(tables: Tensor, span: int) -> tuple[Tensor, Tensor, Tensor]:
    rows, blocks = tables.shape
    starts = torch.arange(rows + 1, dtype=torch.int32, device=tables.device) * blocks
    last = torch.full((rows,), span - (blocks - 1) * _BLOCK, dtype=torch.int32, device=tables.device)
    return starts, tables.flatten(), last


def _flashinfer_workspace(device: torch.device) -> Tensor:
    return torch.empty(128 << 20, dtype=torch.uint8, device=device)


def _flashinfer_run(wrapper: Any, q: Tensor, cache: tuple[Tensor, Tensor]) -> Tensor:
    return wrapper.run(q, cache)
