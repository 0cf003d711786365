"""Pages of e4m3: what is written to them, and attention over them, in the reference and in Triton's kernels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.against import DEVICE, kernel, random
from sonant.kernels import reference
from sonant.kernels.reference import Heads, Place

pytestmark = pytest.mark.usefixtures("no_gradients")

EIGHT = torch.float8_e4m3fn
HEADS, KV_HEADS, DIM, BLOCK = 4, 2, 32, 4
LENGTHS = [0, 1, 9, 70]
WIDTH = 19
RELATIVE_ERROR = 1e-5


def pages(count: int) -> tuple[Tensor, Tensor]:
    """A cache of eight bits with `count` positions more than LENGTHS, NaN where nothing was written, and its tables."""
    order = torch.randperm(len(LENGTHS) * WIDTH, generator=torch.Generator().manual_seed(5)) + 1
    tables = order.view(len(LENGTHS), WIDTH).int().to(DEVICE)
    cache = torch.full((2, len(LENGTHS) * WIDTH + 1, BLOCK, KV_HEADS, DIM), float("nan"), device=DEVICE).to(EIGHT)
    for row, length in enumerate(LENGTHS):
        index = torch.arange(length + count, device=DEVICE)
        slots = tables[row].long()[index // BLOCK] * BLOCK + index % BLOCK
        reference.paged_write(cache, *random(2, length + count, KV_HEADS, DIM, seed=row), slots)
    return cache, tables


def fresh(rows: int, scale: float = 1.0) -> tuple[Tensor, Heads]:
    """A fused projection, and how to make heads of it. Triton's interpreter does not carry when it rounds to eight
    bits, so it gets keys and values that need no rounding; a GPU gets others."""
    qkv = random(rows, 1, (HEADS + 2 * KV_HEADS) * DIM, seed=9) * scale
    if DEVICE == "cuda":
        cos, sin = (random(rows, 1, 1, DIM, seed=seed) for seed in (13, 14))
        return qkv, Heads(random(DIM, seed=11), random(DIM, seed=12), cos, sin, HEADS, KV_HEADS, 1e-6)
    exact = torch.where(qkv.abs() > 448, qkv, qkv.to(EIGHT).float())
    exact = torch.where(exact.abs() < 1 / 64, 0.25, exact)
    ones = torch.ones(rows, 1, 1, DIM)
    return exact, Heads(None, None, ones, 0 * ones, HEADS, KV_HEADS, 1e-6)


def test_what_is_too_large_becomes_the_largest_there_is() -> None:
    cache = torch.zeros(2, 1, 2, 1, 4, dtype=EIGHT)
    keys = torch.tensor([[[1e9, -1e9, 448.0, 465.0]]], dtype=torch.bfloat16)
    reference.paged_write(cache, keys, torch.full_like(keys, 0.3), torch.tensor([1]))
    assert cache[0, 0, 1, 0].float().tolist() == [448, -448, 448, 448]
    assert cache[1, 0, 1, 0].float().tolist() == [0.3125] * 4, "to the nearest"
    assert not cache[:, 0, 0].float().any()


def test_attention_over_eight_bits_is_attention_over_the_values_that_they_stand_for() -> None:
    cache, tables = pages(1)
    q = random(len(LENGTHS), 1, HEADS, DIM, seed=9)
    positions = torch.tensor(LENGTHS, device=DEVICE)[:, None]
    got = reference.paged_attention(q, cache, tables, positions, WIDTH)
    assert torch.equal(got, reference.paged_attention(q, cache.float(), tables, positions, WIDTH))
    assert got.isfinite().all()


def test_triton_attends_over_eight_bits() -> None:
    pytest.importorskip("triton")
    cache, tables = pages(3)
    q = random(len(LENGTHS), 3, HEADS, DIM, seed=9)
    positions = torch.tensor(LENGTHS, device=DEVICE)[:, None] + torch.arange(3, device=DEVICE)
    expected = reference.paged_attention(q, cache, tables, positions, WIDTH)
    assert error(kernel("paged_attention")(q, cache, tables, positions, WIDTH), expected) < RELATIVE_ERROR


def test_triton_writes_eight_bits() -> None:
    pytest.importorskip("triton")
    rows = len(LENGTHS)
    cache, _ = pages(0)
    other, slots = cache.clone(), torch.tensor([5, 9, 21, 2], device=DEVICE)
    qkv, heads = fresh(rows, scale=200)
    q, _, _ = reference.qk_rope(qkv, heads, Place(cache, slots))
    got, _, _ = kernel("qk_rope")(qkv, heads, Place(other, slots))
    assert error(got, q) < RELATIVE_ERROR
    assert_same_pages(cache, other)
    assert float(cache.float().nan_to_num().abs().max()) == 448, "some are too large"


def test_a_step_of_tritons_reads_what_it_writes() -> None:
    """Attention sees the new position as the cache holds it, so a step gives what a prefill of that position gives."""
    pytest.importorskip("triton")
    rows = len(LENGTHS)
    cache, tables = pages(0)
    other = cache.clone()
    qkv, heads = fresh(rows, scale=200)  # the first row sees nothing else
    positions = torch.tensor(LENGTHS, device=DEVICE).int()[:, None]
    expected = reference.paged_step(qkv, heads, cache, tables, positions, WIDTH)
    got = kernel("paged_step")(qkv, heads, other, tables, positions, WIDTH)
    assert error(got, expected) < RELATIVE_ERROR
    assert_same_pages(cache, other)


def error(got: Tensor, expected: Tensor) -> float:
    assert got.shape == expected.shape and got.isfinite().all()
    return float((got - expected).norm() / expected.norm())


def assert_same_pages(cache: Tensor, other: Tensor) -> None:
    """Assert that both are equal but for a few values in a thousand, which lie half-way between two values of e4m3 and
    were rounded the other way."""
    right, ours = cache.float(), other.float()
    assert torch.equal(right.isnan(), ours.isnan())
    assert float((ours != right)[~right.isnan()].float().mean()) < 5e-3
