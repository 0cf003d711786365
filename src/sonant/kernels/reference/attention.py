"""Attention over paged keys and values, over a frame's own, and over dense ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sonant.kernels.reference.rope import Heads, Place, qk_rope


def paged_attention(q: Tensor, cache: Tensor, tables: Tensor, positions: Tensor, span_blocks: int) -> Tensor:
    """Causal grouped-query attention over paged keys and values.

    q [B, T, Hq, D]; cache [2, blocks, block_tokens, Hkv, D]; tables [B, ≥span_blocks] int32; positions [B, T]:
    query (b, t) sees keys 0…positions[b, t]. No key at or past span_blocks · block_tokens may be needed.
    """
    batch, _, _, dim = q.shape
    block_tokens, kv_heads = cache.shape[2], cache.shape[3]
    blocks = tables[:, :span_blocks].long()
    keys, values = (plane[blocks].view(batch, span_blocks * block_tokens, kv_heads, dim) for plane in cache)
    index = torch.arange(keys.shape[1], device=q.device)
    written = (index <= positions.amax(1, keepdim=True))[..., None, None]
    visible = (index <= positions[..., None])[:, None]
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        keys.masked_fill(~written, 0).transpose(1, 2),
        values.masked_fill(~written, 0).transpose(1, 2),
        attn_mask=visible,
        enable_gqa=True,
    )
    return out.transpose(1, 2)


def paged_step(qkv: Tensor, heads: Heads, cache: Tensor, tables: Tensor, positions: Tensor, span_blocks: int) -> Tensor:
    """`qk_rope` and `paged_attention` of one position a row, whose key and value go where `tables` say.

    qkv [B, 1, (heads + 2 · kv_heads) · D], the rest as above → [B, 1, Hq, D]
    """
    block_tokens = cache.shape[2]
    blocks = tables.gather(1, positions.long() // block_tokens).long()
    slots = blocks * block_tokens + positions % block_tokens
    q, _, _ = qk_rope(qkv, heads, Place(cache, slots.flatten()))
    return paged_attention(q, cache, tables, positions, span_blocks)


def short_attention(qkv: Tensor, heads: Heads, cache: Tensor, first: int) -> Tensor:
    """The same for rows that are all at positions `first`…, in a cache of few positions [2, B, positions, Hkv, D].

    qkv [B, T, (heads + 2 · kv_heads) · D] → [B, T, Hq, D]; keys and values are added to the cache.
    """
    q, k, v = qk_rope(qkv, heads)
    end = first + q.shape[1]
    index = torch.arange(end, device=q.device)
    cache[0].index_copy_(1, index[first:], k)
    cache[1].index_copy_(1, index[first:], v)
    visible = index <= index[first:, None] if 0 < first < end - 1 else None
    return dense_attention(q, cache[0, :, :end], cache[1, :, :end], visible)


def dense_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
    """q [B, T, Hq, D] over k, v [B, S, Hkv, D]; `visible` broadcasts to [B, 1, T, S].

    None: causal if T == S, all of S if T == 1.
    """
    causal = visible is None
    if q.shape[1] == 1:  # a branch, since torch.compile takes no symbolic truth for an argument
        causal = False
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=visible,
        is_causal=causal,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return out.transpose(1, 2)
