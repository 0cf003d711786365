"""Attention of a few positions that all see each other, and a guided step of a flow."""

from __future__ import annotations

import pytest
import torch

from kernels.against import DEVICE, DTYPES, cases, close, kernel, random
from sonant.kernels import reference
from sonant.kernels.reference import Heads
from sonant.kernels.tuning import LIBRARY, Tile


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("batch", "steps", "heads", "kv_heads", "dim", "norm"),
    cases(
        *((3, 5, 4, 2, 16, False), (2, 11, 8, 2, 32, True)),
        gpu=[(7, 11, 16, 2, 128, False), (9, 5, 16, 2, 128, False)],
    ),
)
def test_local_attention(
    batch: int, steps: int, heads: int, kv_heads: int, dim: int, norm: bool, dtype: torch.dtype
) -> None:
    if dtype is torch.bfloat16 and DEVICE == "cpu":
        pytest.skip("Triton's interpreter has no bfloat16 products")
    qkv = random(batch, steps, (heads + 2 * kv_heads) * dim, dtype=dtype)
    cos, sin = (random(1, steps, 1, dim, dtype=dtype, seed=n) for n in (1, 2))
    gains = (random(dim, dtype=dtype, seed=3), random(dim, dtype=dtype, seed=4)) if norm else (None, None)
    of = Heads(*gains, cos, sin, heads, kv_heads, 1e-5)
    close(kernel("local_attention")(qkv, of), reference.local_attention(qkv, of), dtype, roundings=3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("batch", "steps", "heads", "kv_heads", "columns", "norm", "tile"),
    cases(
        (2, 5, 4, 2, 37, True, None),
        (3, 11, 8, 2, 48, False, Tile(0, 16, 0, splits=2)),
        (2, 3, 4, 1, 16, False, Tile(0, 16, 0, splits=1)),
        (12, 11, 4, 2, 16, False, None),  # more than a tile should have
        (1, 5, 4, 2, 20, False, LIBRARY),
        gpu=[(2, 11, 16, 2, 1024, False, None), (4, 11, 16, 2, 1024, False, None), (1, 5, 16, 2, 1024, False, None)],
    ),
)
def test_local_attention_onto_a_residual(
    batch: int, steps: int, heads: int, kv_heads: int, columns: int, norm: bool, tile: Tile | None, dtype: torch.dtype
) -> None:
    """Memory behind the projection is NaN, and each tile adds up twice: the first leaves its counters as they were."""
    if dtype is torch.bfloat16 and DEVICE == "cpu":
        pytest.skip("Triton's interpreter has no bfloat16 products")
    dim = 128 if columns == 1024 else 16
    memory = torch.full((batch + 1, steps, (heads + 2 * kv_heads) * dim), float("nan"), dtype=dtype, device=DEVICE)
    qkv = memory[:batch].copy_(random(*memory[:batch].shape, dtype=dtype))
    cos, sin = (random(batch if norm else 1, steps, 1, dim, dtype=dtype, seed=n) for n in (1, 2))
    gains = (random(dim, dtype=dtype, seed=3), random(dim, dtype=dtype, seed=4)) if norm else (None, None)
    of = Heads(*gains, cos, sin, heads, kv_heads, 1e-5)
    weight = random(columns, heads * dim, dtype=dtype, seed=5) / (heads * dim) ** 0.5
    residual = random(batch, steps, columns, dtype=dtype, seed=6)
    expected = reference.local_attention_add(qkv, of, weight, residual)
    for _ in range(2):
        got = kernel("local_attention_add")(qkv, of, weight, residual.clone(), tile=tile)
        close(got, expected, dtype, roundings=3)


def test_heads_that_do_not_share_keys_are_not_one_programs() -> None:
    of = Heads(None, None, torch.ones(1, 3, 1, 16), torch.zeros(1, 3, 1, 16), 4, 2, 1e-5)
    with pytest.raises(ValueError, match="does not divide"):
        kernel("local_attention_add")(random(1, 3, 128), of, random(8, 64), random(1, 3, 8), tile=Tile(0, 16, splits=1))


def test_every_position_sees_every_other() -> None:
    qkv = random(1, 5, 6 * 16)
    of = Heads(None, None, torch.ones(1, 5, 1, 16, device=DEVICE), torch.zeros(1, 5, 1, 16, device=DEVICE), 4, 1, 1e-5)
    before = reference.local_attention(qkv, of)
    qkv[:, -1, -16:] += 1  # the last one's value
    assert (reference.local_attention(qkv, of) != before).any(-1).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_guided_step(dtype: torch.dtype) -> None:
    x, velocity = random(5, 4, 16), random(10, 4, 16, dtype=dtype, seed=1)
    guidance = torch.tensor([[2.0, 9], [1.0, 9], [0.0, 9], [1.5, 9], [3.0, 9]], device=DEVICE)[:, 0]
    expected = reference.guided_step(x, velocity, guidance, 0.125)
    close(kernel("guided_step")(x, velocity, guidance, 0.125), expected, torch.float32, roundings=3)
    for row in range(5):  # neighbours change nothing
        pair = velocity[[row, row + 5]]
        alone = reference.guided_step(x[row : row + 1], pair, guidance[row : row + 1], 0.125)
        close(alone, expected[row : row + 1], torch.float32)


def test_guidance_of_one_is_the_guided_velocity_alone() -> None:
    x, velocity = random(2, 4, 16), random(4, 4, 16, seed=1)
    moved = reference.guided_step(x, velocity, torch.ones(2, device=DEVICE), 0.5)
    close(moved, x - 0.5 * velocity[:2], torch.float32, roundings=3)
