"""The ops of a transformer layer: norm and projections, heads with their rotary positions, and attention.

A projection comes with the norm that opens a residual branch or the sum that ends it. Attention is over paged keys and
values, over a frame's own, over a ring's, and over dense ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from sonant.kernels.reference.quantized import QuantizedWeight, Weight


class Place(NamedTuple):
    """Where fresh keys and values go: token slots [N] of a cache [2, blocks, block_tokens, H, D]."""

    cache: Tensor
    slots: Tensor


class Unscaled(NamedTuple):
    """A norm that is left to the reader of a product: with its gain in the weight, all that is missing is a factor of
    each row, one over the root mean square of these rows [..., hidden], the product's input."""

    rows: Tensor
    eps: float

    def scaled(self, product: Tensor) -> Tensor:
        factor = torch.rsqrt(self.rows.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return (product.float() * factor).to(product.dtype)


class Heads(NamedTuple):
    """What turns a fused projection into queries and keys: the gains of their norms, if any, rotations and counts."""

    q_weight: Tensor | None
    k_weight: Tensor | None
    cos: Tensor  # [B or 1, T, 1, D]
    sin: Tensor
    heads: int
    kv_heads: int
    eps: float
    unscaled: Unscaled | None = None  # what the projection is still to be multiplied by
    bounded: bool = False  # all values fit in eight bits, so `linear_add` may get attention's output in eight bits


class LocalWeights(NamedTuple):
    """The weights of a layer over a few positions that all see each other, in the order of their use."""

    first_gain: Tensor
    qkv: Weight
    heads: Heads
    out: Weight
    second_gain: Tensor
    gate_up: Weight
    down: Weight


class RingPlace:
    """The rows [B] of a ring that a call uses, and their consecutive positions [B, T].

    What follows from them is computed when it is first needed, once for all layers.
    """

    def __init__(self, rows: Tensor, positions: Tensor, window: int, slots: int) -> None:
        assert positions.shape[1] <= slots - window + 1, "a call brings more than its ring has room for"
        self.rows, self.positions, self.window, self.slots = rows, positions, window, slots

    @cached_property
    def written(self) -> Tensor:
        """The slots [B · T] for new keys and values, counted over all rows."""
        return (self.rows[:, None] * self.slots + self.positions % self.slots).flatten()

    @cached_property
    def bias(self) -> Tensor:
        """[B, 1, T, slots]: 0 where a query sees a slot's key, else -∞, as torch would make it from a mask."""
        last = self.positions[:, -1:]
        held = last - (last - torch.arange(self.slots, device=last.device)) % self.slots  # the position in each slot
        age = self.positions[..., None] - held[:, None]
        visible = ((age >= 0) & (age < self.window) & (held[:, None] >= 0))[:, None]
        return torch.where(visible, 0.0, -torch.inf)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * scaled.to(x.dtype)


def add_norm(x: Tensor, branch: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """A residual sum, and its RMSNorm with `gain`, which opens the next branch."""
    total = x + branch
    return total, rms_norm(total, gain, eps)


def linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    return F.linear(x, weight.dequantized(x.dtype) if isinstance(weight, QuantizedWeight) else weight, bias)


def linear_add(x: Tensor, weight: Weight, residual: Tensor) -> Tensor:
    """The end of a residual branch. It may overwrite `residual`, which must not be used afterwards. x may have eight
    bits, if `Heads.bounded` let a kernel leave it so."""
    return residual + linear(x if x.dtype == residual.dtype else x.to(residual.dtype), weight)


def norm_linear(x: Tensor, gain: Tensor, eps: float, weight: Weight) -> Tensor:
    """The start of a residual branch: RMSNorm with `gain`, then the projection."""
    return linear(rms_norm(x, gain, eps), weight)


def norm_gated(x: Tensor, gain: Tensor, eps: float, weight: Weight, folded: bool = False) -> Tensor:
    """`norm_linear`, then SwiGLU; the first half of `weight` makes the gate. `folded`: the gain is in it already."""
    return swiglu(linear(rms_norm(x, gain, eps), weight))


def swiglu(gate_up: Tensor, unscaled: Unscaled | None = None) -> Tensor:
    gate, up = (gate_up if unscaled is None else unscaled.scaled(gate_up)).chunk(2, dim=-1)
    return F.silu(gate) * up


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions, half-split layout. x [B, T, H, D]; cos, sin [B, T, 1, D] in x's dtype."""
    half = x.shape[-1] // 2
    quarter_turn = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return x * cos + quarter_turn * sin


def qk_rope(qkv: Tensor, heads: Heads, place: Place | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Split qkv [B, T, (heads + 2 · kv_heads) · D], norm queries and keys by head if weights are given, rotate them.

    → q [B, T, heads, D], k and v [B, T, kv_heads, D], or with a `place` empty ones, since they are in the cache.
    """
    if heads.unscaled is not None:
        qkv = heads.unscaled.scaled(qkv)
    split = qkv.unflatten(-1, (heads.heads + 2 * heads.kv_heads, -1))
    q, k, v = split.split([heads.heads, heads.kv_heads, heads.kv_heads], dim=2)
    if heads.q_weight is not None and heads.k_weight is not None:
        q, k = rms_norm(q, heads.q_weight, heads.eps), rms_norm(k, heads.k_weight, heads.eps)
    q, k = rotate(q, heads.cos, heads.sin), rotate(k, heads.cos, heads.sin)
    if place is not None:
        paged_write(place.cache, k.flatten(0, 1), v.flatten(0, 1), place.slots)
        k = v = q.new_empty(0)
    return q, k, v


def paged_write(cache: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
    """Put k, v [N, H, D] at token slots [N] of cache [2, blocks, block_tokens, H, D].

    The cache may have another dtype than they have. What is too large for eight bits becomes the largest number.
    """
    for plane, values in zip(_movable(cache).view(2, -1, *cache.shape[3:]), (k, v), strict=True):
        plane.index_copy_(0, slots, _movable(as_cached(values, cache.dtype)))


def as_cached(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The values as a cache of that dtype holds them."""
    if dtype.itemsize == 1:
        largest = torch.finfo(dtype).max
        values = values.clamp(-largest, largest)
    return values.to(dtype)


def _movable(values: Tensor) -> Tensor:
    """Values of eight bits as bytes, since torch does not copy all such dtypes by index."""
    return values.view(torch.uint8) if values.dtype.itemsize == 1 else values


def paged_attention(q: Tensor, cache: Tensor, tables: Tensor, positions: Tensor, span_blocks: int) -> Tensor:
    """Causal grouped-query attention over paged keys and values.

    q [B, T, Hq, D]; cache [2, blocks, block_tokens, Hkv, D]; tables [B, ≥span_blocks] int32; positions [B, T]:
    query (b, t) sees keys 0…positions[b, t]. No key at or past span_blocks · block_tokens may be needed. The cache
    is of q's type or of eight bits.
    """
    batch, _, _, dim = q.shape
    block_tokens, kv_heads = cache.shape[2], cache.shape[3]
    blocks = tables[:, :span_blocks].long()
    keys, values = (
        plane[blocks].view(cache.dtype).to(q.dtype).view(batch, span_blocks * block_tokens, kv_heads, dim)
        for plane in _movable(cache)
    )
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
    """`qk_rope` and `paged_attention` for one position per row, whose key and value go where `tables` say.

    qkv [B, 1, (heads + 2 · kv_heads) · D], the rest as in `paged_attention` → [B, 1, Hq, D]
    """
    block_tokens = cache.shape[2]
    blocks = tables.gather(1, positions.long() // block_tokens).long()
    slots = blocks * block_tokens + positions % block_tokens
    q, _, _ = qk_rope(qkv, heads, Place(cache, slots.flatten()))
    return paged_attention(q, cache, tables, positions, span_blocks)


def short_attention(qkv: Tensor, heads: Heads, cache: Tensor, first: int) -> Tensor:
    """`qk_rope` and attention, all rows at positions `first`…, in a cache of few positions [2, B, positions, Hkv, D].

    qkv [B, T, (heads + 2 · kv_heads) · D] → [B, T, Hq, D]; keys and values are added to the cache.
    """
    q, k, v = qk_rope(qkv, heads)
    end = first + q.shape[1]
    index = torch.arange(end, device=q.device)
    cache[0].index_copy_(1, index[first:], k)
    cache[1].index_copy_(1, index[first:], v)
    visible = index <= index[first:, None] if 0 < first < end - 1 else None
    return dense_attention(q, cache[0, :, :end], cache[1, :, :end], visible)


def ring_attention(qkv: Tensor, heads: Heads, ring: Tensor, place: RingPlace) -> Tensor:
    """`qk_rope` and attention, in which each query sees the last `window` positions up to its own.

    qkv [B, T, (heads + 2 · kv_heads) · D] → [B, T, heads, D]; new keys and values are added to the ring
    [2, rows, slots, kv_heads, D]. Slots that were never written must be finite.
    """
    q, _, _ = qk_rope(qkv, heads, Place(ring, place.written))
    keys, values = ring
    return dense_attention(q, keys[place.rows], values[place.rows], place.bias.to(ring.dtype))


def local_attention(qkv: Tensor, heads: Heads) -> Tensor:
    """Attention of a few positions that all see each other: qkv [B, T, (heads + 2 · kv_heads) · D] → [B, T, Hq, D]."""
    q, k, v = (x.transpose(1, 2) for x in qk_rope(qkv, heads))
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1]).transpose(1, 2)


def local_attention_add(qkv: Tensor, heads: Heads, weight: Weight, residual: Tensor) -> Tensor:
    """`local_attention`, projected onto a residual [B, T, columns], which may be overwritten as in `linear_add`."""
    return linear_add(local_attention(qkv, heads).flatten(2), weight, residual)


def local_stack(x: Tensor, layers: Sequence[LocalWeights]) -> Tensor:
    """Take x [B, T, hidden], which may be overwritten, through all layers."""
    for layer in layers:
        eps = layer.heads.eps
        x = local_attention_add(norm_linear(x, layer.first_gain, eps, layer.qkv), layer.heads, layer.out, x)
        x = linear_add(norm_gated(x, layer.second_gain, eps, layer.gate_up), layer.down, x)
    return x


def dense_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
    """q [B, T, Hq, D] over k, v [B, S, Hkv, D]; `visible` broadcasts to [B, 1, T, S], or is added to the scores.

    None: causal if T == S, all of S if T == 1.
    """
    causal = visible is None
    if q.shape[1] == 1:  # a branch, since torch.compile takes no symbolic bool as an argument
        causal = False
    with _quick_to_start(q):
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            attn_mask=visible,
            is_causal=causal,
            enable_gqa=q.shape[2] != k.shape[2],
        )
    return out.transpose(1, 2)


def _quick_to_start(q: Tensor) -> AbstractContextManager[None]:
    """Exclude cuDNN's attention, which makes a plan for every shape: 50 ms for each of the 65 in a codec's graphs."""
    if q.device.type != "cuda":
        return nullcontext()
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
