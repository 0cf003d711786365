"""Every op in plain torch: the truth that faster kernels are tested against, and the CPU path.

Uninitialised cache memory may hold NaN, so nothing here lets a masked value take part in arithmetic.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_PHILOX_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW32 = 0xFFFFFFFF


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * scaled.to(x.dtype)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight)


def linear_add(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    """The end of a residual branch. It may be written over `residual`, which is not to be used afterwards."""
    return residual + F.linear(x, weight)


def norm_linear(x: Tensor, gain: Tensor, eps: float, weight: Tensor) -> Tensor:
    """The start of one: RMSNorm with `gain`, then the projection."""
    return F.linear(rms_norm(x, gain, eps), weight)


def norm_gated(x: Tensor, gain: Tensor, eps: float, weight: Tensor) -> Tensor:
    """The same into SwiGLU; the first half of `weight` makes the gate."""
    return swiglu(F.linear(rms_norm(x, gain, eps), weight))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions, half-split layout. x [B, T, H, D]; cos, sin [B, T, 1, D] in x's dtype."""
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return x * cos + turned * sin


class Snake(NamedTuple):
    """SnakeBeta's parameters, by channel."""

    alpha: Tensor
    beta: Tensor


def causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    past: Tensor | None,
    dilation: int = 1,
    *,
    residual: Tensor | None = None,
    snake: Snake | None = None,
    keep: bool = True,
) -> tuple[Tensor, Tensor]:
    """x [B, T, I] with weight [N, I, K] → the sum with bias and residual, and the same after SnakeBeta.

    `past` [B, (K - 1) · dilation, I] came before x; None: silence did. Where bias and snake have fewer channels than
    the weight has columns, columns are samples of channels, all channels of the first sample first. `keep=False`:
    only the second result is wanted. Without `snake` both are the same.
    """
    history = (weight.shape[2] - 1) * dilation
    if history:
        x = F.pad(x, (0, 0, history, 0)) if past is None else torch.cat([past, x], dim=1)
    y = convolve(x, weight, dilation=dilation)
    shape = y.shape
    y = (y.reshape(len(y), -1, len(bias)) + bias).view(shape) if len(bias) < shape[2] else y + bias
    if residual is not None:
        y = y + residual
    if snake is None:
        return y, y
    return y, snake_beta(y.reshape(len(y), -1, len(snake.alpha)), *snake).view(shape)


def convolve(x: Tensor, weight: Tensor, *, stride: int = 1, dilation: int = 1) -> Tensor:
    """[B, T, C] → [B, T', C'] with no padding: as a flat image, since only images can have their channels last."""
    if weight.shape[2] == 1 and stride == 1:
        return F.linear(x, weight[:, :, 0])
    y = F.conv2d(x.mT.unsqueeze(2), weight.unsqueeze(2), None, (1, stride), 0, (1, dilation))
    return y.squeeze(2).mT


def depthwise(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Each channel of x [B, T, C] by itself with its weight [C, 1, K], without padding → [B, T - K + 1, C]."""
    y = F.conv2d(x.mT.unsqueeze(2), weight.unsqueeze(2), bias, groups=x.shape[-1])
    return y.squeeze(2).mT


class Place(NamedTuple):
    """Where fresh keys and values go: token slots [N] of a cache [2, blocks, block_tokens, H, D]."""

    cache: Tensor
    slots: Tensor


class Heads(NamedTuple):
    """What makes queries and keys of a fused projection: the gains of their norms, if any, rotations and counts."""

    q_weight: Tensor | None
    k_weight: Tensor | None
    cos: Tensor  # [B or 1, T, 1, D]
    sin: Tensor
    heads: int
    kv_heads: int
    eps: float


def qk_rope(
    qkv: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    heads: int,
    kv_heads: int,
    eps: float,
    place: Place | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Split qkv [B, T, (heads + 2 · kv_heads) · D], norm queries and keys by head if weights are given, rotate them.

    → q [B, T, heads, D], k and v [B, T, kv_heads, D], or with a `place` empty ones: they are in the cache then.
    """
    parts = qkv.unflatten(-1, (heads + 2 * kv_heads, -1))
    q, k, v = parts.split([heads, kv_heads, kv_heads], dim=2)
    if q_weight is not None and k_weight is not None:
        q, k = rms_norm(q, q_weight, eps), rms_norm(k, k_weight, eps)
    q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    if place is not None:
        paged_write(place.cache, k.flatten(0, 1), v.flatten(0, 1), place.slots)
        k = v = q.new_empty(0)
    return q, k, v


def swiglu(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def snake_beta(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """x + sin²(x·e^α) / (e^β + 1e-9) by channel. x [B, T, C]."""
    return x + torch.sin(x * alpha.exp()).square() / (beta.exp() + 1e-9)


def paged_write(cache: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
    """Put k, v [N, H, D] at token slots [N] of cache [2, blocks, block_tokens, H, D]."""
    flat = cache.view(2, -1, *cache.shape[3:])
    flat[0].index_copy_(0, slots, k)
    flat[1].index_copy_(0, slots, v)


def paged_attention(q: Tensor, cache: Tensor, tables: Tensor, positions: Tensor, span_blocks: int) -> Tensor:
    """Causal grouped-query attention over paged keys and values.

    q [B, T, Hq, D]; cache [2, blocks, block_tokens, Hkv, D]; tables [B, ≥span_blocks] int32; positions [B, T]:
    query (b, t) sees keys 0…positions[b, t]. No key at or past span_blocks · block_tokens may be needed.
    """
    batch, _, _, dim = q.shape
    block_tokens, kv_heads = cache.shape[2], cache.shape[3]
    blocks = tables[:, :span_blocks].long()
    keys, values = (part[blocks].view(batch, span_blocks * block_tokens, kv_heads, dim) for part in cache)
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
    q, _, _ = qk_rope(qkv, *heads, Place(cache, slots.flatten()))
    return paged_attention(q, cache, tables, positions, span_blocks)


def short_attention(qkv: Tensor, heads: Heads, cache: Tensor, first: int) -> Tensor:
    """The same for rows that are all at positions `first`…, in a cache of few positions [2, B, positions, Hkv, D].

    qkv [B, T, (heads + 2 · kv_heads) · D] → [B, T, Hq, D]; keys and values are added to the cache.
    """
    q, k, v = qk_rope(qkv, *heads)
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


def uniforms(seed: Tensor, frame: Tensor, count: int) -> Tensor:
    """`count` numbers in [0, 1) for each row, from Philox-4×32-10 at (seed, frame, index): no state, no order.

    seed [B, 2] int32 (low and high word), frame [B]. → [B, count] float32
    """
    device = seed.device
    index = torch.arange(count, device=device, dtype=torch.int64).expand(seed.shape[0], count)
    c0, c1 = index, frame.long()[:, None].expand_as(index)
    c2 = c3 = torch.zeros_like(index)
    k0, k1 = (seed.long()[:, i, None] & _LOW32 for i in (0, 1))
    for _ in range(10):
        p0, p1 = c0 * _PHILOX_MULTIPLIERS[0], c2 * _PHILOX_MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _LOW32) ^ c1 ^ k0,
            p1 & _LOW32,
            ((p0 >> 32) & _LOW32) ^ c3 ^ k1,
            p0 & _LOW32,
        )
        k0, k1 = (k0 + _PHILOX_WEYL[0]) & _LOW32, (k1 + _PHILOX_WEYL[1]) & _LOW32
    # 23 bits: u · total then stays strictly below total in float32
    return (c0 >> 9).float() * 2.0**-23


class Bans(NamedTuple):
    """What keeps ids from being drawn."""

    seen: Tensor  # [N, V] bool: drawn before, so `penalty` [B] applies
    penalty: Tensor
    banned: Tensor  # [V] bool: never drawn
    stop_id: int  # not drawn where `ban_stop` [B] bool
    ban_stop: Tensor
    rows: Tensor | None = None  # [B]: whose line of `seen` is meant; None: line b is row b's


class Lookup(NamedTuple):
    """What a drawn id stands for, fetched by who draws it."""

    table: Tensor  # [V, D]
    out: Tensor  # [B, D], written: the line of each row's id

    def fetch(self, ids: Tensor) -> None:
        torch.index_select(self.table, 0, ids, out=self.out)


def penalize(logits: Tensor, bans: Bans) -> Tensor:
    """Repetition penalty over ids already drawn, then the ban on stopping early, then the fixed bans."""
    factor = bans.penalty[:, None]
    seen = bans.seen if bans.rows is None else bans.seen[bans.rows]
    logits = torch.where(seen, torch.where(logits > 0, logits / factor, logits * factor), logits)
    stop = torch.arange(logits.shape[-1], device=logits.device) == bans.stop_id
    return logits.masked_fill(bans.banned | (stop & bans.ban_stop[:, None]), float("-inf"))


def sample(
    logits: Tensor,
    uniform: Tensor,
    *,
    greedy: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    bans: Bans | None = None,
    lookup: Lookup | None = None,
) -> Tensor:
    """Draw one id for each row: penalty and bans if given, temperature, top-k, top-p, then one uniform number.

    logits [B, V]; uniform, greedy, temperature, top_k, top_p [B]. Rows with `greedy` not 0 take the largest logit after
    penalty and bans. top_k 0 means no limit. The draw inverts the distribution in id order, so a row's result needs
    nothing of its neighbours.
    """
    logits = logits.float()
    if bans is not None:
        logits = penalize(logits, bans)
    best = logits.argmax(-1)
    scores = logits / temperature[:, None]
    ranked = scores.sort(-1, descending=True).values
    vocab = scores.shape[-1]
    limit = torch.where(top_k > 0, top_k, vocab).clamp(max=vocab).long()
    rank = torch.arange(vocab, device=logits.device)
    kth = ranked.gather(-1, limit[:, None] - 1)
    ranked_probs = ranked.masked_fill(ranked < kth, float("-inf")).softmax(-1)
    before = ranked_probs.cumsum(-1) - ranked_probs
    kept = ((before < top_p[:, None]) | (rank == 0)) & (ranked >= kth)
    lowest = ranked.gather(-1, kept.sum(-1, keepdim=True) - 1)
    weights = (scores - ranked[:, :1]).exp().masked_fill(scores < lowest, 0)
    running = weights.cumsum(-1)
    drawn = (running <= uniform[:, None] * running[:, -1:]).sum(-1)
    ids = torch.where(greedy != 0, best, drawn)
    if lookup is not None:
        lookup.fetch(ids)
    return ids
