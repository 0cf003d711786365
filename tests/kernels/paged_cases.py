"""Made-up paged caches of drawn shapes, and the right results of attention over them, to test the CUDA kernels."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sonant.kernels import reference
from sonant.kernels.reference import Heads

SHARES = ((16, 8), (24, 8), (16, 2), (4, 4), (16, 1), (6, 2))  # heads, kv_heads; our families' come first
BLOCKS = (1, 4, 12, 16, 32, 64, 128, 256)
RELATIVE_ERROR = 1e-2  # of results in bfloat16 from sums in float32
EIGHT_BITS_ERROR = 5e-2  # of a cached head: a value that bfloat16 rounds the other way may be another e4m3 number


@dataclass(frozen=True)
class Shape:
    heads: int
    kv_heads: int
    dim: int
    block: int
    lengths: tuple[int, ...]  # positions of each row before this call
    queries: int  # new positions of each row
    wide: bool  # whether positions are int64
    norm: bool
    spare: int  # blocks of a table beyond those of the longest row
    eight: bool = False  # whether keys and values are e4m3

    @property
    def width(self) -> int:
        return -(-(max(self.lengths) + self.queries) // self.block) + self.spare

    @property
    def cache_error(self) -> float:
        return EIGHT_BITS_ERROR if self.eight else RELATIVE_ERROR


def draw(rng: random.Random, *, most_rows: int, most_length: int, most_queries: int) -> Shape:
    heads, kv_heads = rng.choice(SHARES)
    lengths = tuple(rng.choice((0, 1, rng.randrange(most_length), rng.randrange(most_length))) for _ in range(
        rng.randint(1, most_rows)
    ))  # fmt: skip
    return Shape(
        heads, kv_heads, rng.choice((64, 128)), rng.choice(BLOCKS), lengths, rng.randint(1, most_queries),
        rng.random() < 0.5, rng.random() < 0.5, rng.randrange(4),
    )  # fmt: skip


def filled(shape: Shape, count: int, seed: int, device: str) -> tuple[Tensor, Tensor]:
    """A cache that has each row's positions and `count` more, and NaN everywhere else; and its tables."""
    rows, width = len(shape.lengths), shape.width
    generator = torch.Generator(device).manual_seed(seed)
    order = torch.randperm(rows * width, generator=generator, device=device) + 1
    tables = order.view(rows, width).int()
    planes = (2, rows * width + 1, shape.block, shape.kv_heads, shape.dim)
    cache = torch.randn(planes, generator=generator, device=device).bfloat16()
    index = torch.arange(width * shape.block, device=device)
    ends = torch.tensor(shape.lengths, device=device)[:, None] + count
    slots = tables.long()[:, index // shape.block] * shape.block + index % shape.block
    unused = torch.ones(cache[0].numel() // (shape.kv_heads * shape.dim), dtype=torch.bool, device=device)
    unused[slots[index < ends]] = False
    cache.view(2, len(unused), -1)[:, unused] = float("nan")
    return cache.to(torch.float8_e4m3fn) if shape.eight else cache, tables


def step_call(shape: Shape, seed: int, device: str) -> tuple[Any, ...]:
    """The arguments of a `paged_step`."""
    cache, tables = filled(shape, 0, seed, device)
    rows, dim = len(shape.lengths), shape.dim
    generator = torch.Generator(device).manual_seed(seed + 1)

    def values(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator, device=device).bfloat16()

    gains = (values(dim), values(dim)) if shape.norm else (None, None)
    turns = 1 if seed % 5 == 0 else rows
    heads = Heads(*gains, values(turns, 1, 1, dim), values(turns, 1, 1, dim), shape.heads, shape.kv_heads, 1e-6)
    lines = torch.tensor([[length, -1] for length in shape.lengths], device=device)  # with a stride
    positions = (lines if shape.wide else lines.int())[:, :1]
    qkv = values(rows, 1, (shape.heads + 2 * shape.kv_heads) * dim)
    return qkv, heads, cache, tables, positions, shape.width


def prefill_call(shape: Shape, seed: int, device: str) -> tuple[Any, ...]:
    """The arguments of a `paged_attention`. Some queries are padding, which sees only the first position."""
    cache, tables = filled(shape, shape.queries, seed, device)
    generator = torch.Generator(device).manual_seed(seed + 1)
    q = torch.randn(
        len(shape.lengths), shape.queries, shape.heads, shape.dim, generator=generator, device=device
    ).bfloat16()
    positions = torch.tensor(shape.lengths, device=device)[:, None] + torch.arange(shape.queries, device=device)
    if seed % 3 == 0:
        positions[:, 1 + shape.queries // 2 :] = 0
    return q, cache, tables, positions if shape.wide else positions.int(), shape.width


def exact_attention(q: Tensor, cache: Tensor, tables: Tensor, positions: Tensor, span: int) -> Tensor:
    """The reference's result in float32 arithmetic."""
    return reference.paged_attention(q.float(), cache.float(), tables, positions, span).bfloat16()


def exact_step(qkv: Tensor, heads: Heads, cache: Tensor, tables: Tensor, positions: Tensor, span: int) -> Tensor:
    """The reference's result, with heads rounded as the model's are, and sums in float32. It writes to the cache."""
    reference.paged_step(qkv, heads, cache, tables, positions, span)
    q, _, _ = reference.qk_rope(qkv, heads)
    return exact_attention(q, cache, tables, positions, span)


def cache_error(got: Tensor, expected: Tensor) -> float:
    """The largest relative error of a head that was written; infinite if one cache has what the other has not.

    It is relative to the head's norm: a rotation may leave little of two large values, one of which was rounded the
    other way.
    """
    wide, right = got.float(), expected.float()
    if not torch.equal(wide.isnan(), right.isnan()):
        return float("inf")
    wide, right = wide.nan_to_num(), right.nan_to_num()
    return float(((wide - right).norm(dim=-1) / right.norm(dim=-1).clamp_min(1e-3)).max())


def error_of(got: Tensor, expected: Tensor) -> float:
    """The largest relative error of a row; infinite if a value is not finite."""
    if got.shape != expected.shape or not bool(got.isfinite().all()):
        return float("inf")
    wide, right = got.double().flatten(2), expected.double().flatten(2)
    return float(((wide - right).norm(dim=2) / right.norm(dim=2).clamp_min(1e-3)).max())
