"""Each Triton kernel computes what its reference does: in Triton's interpreter here, on the GPU where there is one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.against import DEVICE, DTYPES, cases, close, kernel, random
from sonant.kernels import reference
from sonant.kernels.reference import Heads, Place, Unscaled
from sonant.kernels.tuning import LIBRARY, Tile

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("no_gradients")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 48), (3, 2, 64), (2, 1, 1024), (1, 1, 2048)])
def test_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight = random(*shape, dtype=dtype), random(shape[-1], dtype=dtype)
    close(kernel("rms_norm")(x, weight, 1e-6), reference.rms_norm(x, weight, 1e-6), dtype)
    branch = random(*shape, dtype=dtype, seed=1)
    given = x, branch, weight, 1e-6
    for got, expected in zip(kernel("add_norm")(*given), reference.add_norm(*given), strict=True):
        close(got, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("columns", "depth", "rows"),
    cases(
        *((48, 64, rows) for rows in (1, 2, 17, 33, 64, 65)),
        *((33, 320, rows) for rows in (1, 33)),
        *((256, 96, 1), (5, 3072, 1)),
        gpu=[
            *((33, 320, rows) for rows in (2, 17, 64, 65)),
            *((columns, depth, rows) for columns, depth in ((256, 96), (5, 3072)) for rows in (17, 65)),
        ],
    ),
)
def test_products_with_few_rows(columns: int, depth: int, rows: int, dtype: torch.dtype) -> None:
    if rows > 1 and dtype is torch.bfloat16 and DEVICE == "cpu":
        pytest.skip("neither Triton's interpreter nor every CPU has bfloat16 products")
    x, gain = random(rows, 1, depth, dtype=dtype), random(depth, dtype=dtype, seed=1)
    weight = random(2 * columns, depth, dtype=dtype, seed=2) / depth**0.5
    half = weight[:columns].contiguous()
    before, bias = random(rows, 1, columns, dtype=dtype, seed=3), random(columns, dtype=dtype, seed=4)

    def exact(function: Any, *values: Any) -> torch.Tensor:
        wide = [v.float() if isinstance(v, torch.Tensor) else v for v in values]
        return function(*wide).to(dtype)

    for op, values in {
        "linear": (x, half, bias) if rows in (1, 17) else (x, half),
        "linear_add": (x, half, before),
        "norm_linear": (x, gain, 1e-6, half),
        "norm_gated": (x, gain, 1e-6, weight),
    }.items():
        expected = exact(getattr(reference, op), *values)
        # Each finds the counters of `half` as the previous op left them; the gated one alone uses those of `weight`.
        for _ in range(2 if op == "norm_gated" else 1):
            given = [v.clone() if v is before else v for v in values]  # it may be overwritten
            close(kernel(op)(*given), expected, dtype, roundings=3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "norm"),
    cases((4, 2, 32, True), (4, 2, 32, False), (3, 3, 16, True), gpu=[(16, 8, 128, True)]),
)
def test_qk_rope(heads: int, kv_heads: int, dim: int, norm: bool, dtype: torch.dtype) -> None:
    qkv = random(2, 3, (heads + 2 * kv_heads) * dim, dtype=dtype)
    weights = (random(dim, dtype=dtype, seed=1), random(dim, dtype=dtype, seed=2)) if norm else (None, None)
    cos, sin = random(2, 3, 1, dim, dtype=dtype, seed=3), random(2, 3, 1, dim, dtype=dtype, seed=4)
    of = Heads(*weights, cos, sin, heads, kv_heads, 1e-6)
    for got, expected in zip(kernel("qk_rope")(qkv, of), reference.qk_rope(qkv, of), strict=True):
        close(got, expected, dtype)
    caches = [torch.full((2, 5, 4, kv_heads, dim), float("nan"), dtype=dtype, device=DEVICE) for _ in "ab"]
    slots = torch.tensor([7, 19, 4, 0, 13, 8], device=DEVICE)
    expected = reference.qk_rope(qkv, of, Place(caches[0], slots))
    got = kernel("qk_rope")(qkv, of, Place(caches[1], slots))
    close(got[0], expected[0], dtype)
    assert torch.equal(caches[0].isnan(), caches[1].isnan())
    close(caches[1].nan_to_num(), caches[0].nan_to_num(), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [64, 3072])
def test_swiglu(width: int, dtype: torch.dtype) -> None:
    x = random(3, 2, 2 * width, dtype=dtype)
    close(kernel("swiglu")(x), reference.swiglu(x), dtype)
    left = Unscaled(random(3, 2, 80, dtype=dtype, seed=1), 1e-6)
    close(kernel("swiglu")(x, left), reference.swiglu(x, left), dtype, roundings=2)


@pytest.mark.parametrize("rows", cases(3, 40, gpu=[64]))
@pytest.mark.parametrize(
    "tile",
    [
        Tile(0, 16, 32, stages=2),
        Tile(0, 32, 64, stages=2, splits=3),
        Tile(0, 16, 64, stages=2, splits=1, fold=4),
        Tile(0, 32, 32, stages=2, splits=2, fold=2),
        LIBRARY,
    ],
    ids=str,
)
def test_a_product_is_the_same_in_every_tile(tile: Tile, rows: int) -> None:
    depth, columns = 192, 37
    x, gain = random(rows, 1, depth), random(depth, seed=1)
    weight = random(2 * columns, depth, seed=2) / depth**0.5
    half = weight[:columns].contiguous()
    for op, values in {
        "linear": (x, half),
        "linear_add": (x, half, random(rows, 1, columns, seed=3)),
        "norm_linear": (x, gain, 1e-6, half),
        "norm_gated": (x, gain, 1e-6, weight),
    }.items():
        expected = getattr(reference, op)(*values)
        for _ in range(2 if op == "norm_gated" else 1):  # as above
            given = [v.clone() if v is values[-1] and op == "linear_add" else v for v in values]
            close(kernel(op)(*given, tile=tile), expected, torch.float32, roundings=3)


def test_a_tile_that_does_not_divide_the_depth_is_refused() -> None:
    with pytest.raises(ValueError, match="does not divide"):
        kernel("linear")(random(8, 1, 96), random(16, 96), tile=Tile(0, 16, 64))


def filled_cache(
    lengths: list[int], width: int, block: int, kv_heads: int, dim: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """A cache with `lengths` positions of the rows, NaN where nothing was written, and its tables of `width` blocks."""
    rows = len(lengths)
    order = torch.randperm(rows * width, generator=torch.Generator().manual_seed(5)) + 1
    tables = order.view(rows, width).int().to(DEVICE)
    cache = torch.full((2, rows * width + 1, block, kv_heads, dim), float("nan"), dtype=dtype, device=DEVICE)
    for row, length in enumerate(lengths):
        index = torch.arange(length, device=DEVICE)
        slots = tables[row].long()[index // block] * block + index % block
        k, v = random(2, length, kv_heads, dim, dtype=dtype, seed=row)
        reference.paged_write(cache, k, v, slots)
    return cache, tables


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "block"), cases((4, 2, 32, 4), (4, 4, 16, 12), gpu=[(16, 8, 128, 16)])
)
def test_paged_attention(heads: int, kv_heads: int, dim: int, block: int, queries: int, dtype: torch.dtype) -> None:
    """Memory is NaN where nothing was written."""
    if dtype is torch.bfloat16 and DEVICE == "cpu":
        pytest.skip("Triton's interpreter has no bfloat16 products")
    lengths = [queries, 2 * block + 1 + queries, 70 + queries]
    width = -(-max(lengths) // block)
    cache, tables = filled_cache(lengths, width, block, kv_heads, dim, dtype)
    q = random(3, queries, heads, dim, dtype=dtype, seed=9)
    positions = torch.stack([torch.arange(n - queries, n) for n in lengths]).to(DEVICE)
    expected = reference.paged_attention(q, cache, tables, positions, width)
    close(kernel("paged_attention")(q, cache, tables, positions, width), expected, dtype)


def heads_of(heads: int, kv_heads: int, dim: int, rotations: tuple[int, int], norm: bool, dtype: torch.dtype) -> Heads:
    weights = (random(dim, dtype=dtype, seed=11), random(dim, dtype=dtype, seed=12)) if norm else (None, None)
    cos, sin = (random(*rotations, 1, dim, dtype=dtype, seed=seed) for seed in (13, 14))
    return Heads(*weights, cos, sin, heads, kv_heads, 1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "block"),
    cases((4, 2, 32, 4), (4, 4, 16, 12), pytest.param(5, 5, 64, 16, marks=pytest.mark.slow), gpu=[(16, 8, 128, 16)]),
)
def test_a_paged_step(heads: int, kv_heads: int, dim: int, block: int, norm: bool, dtype: torch.dtype) -> None:
    """One row's cache is empty, and memory is NaN where nothing was written."""
    if dtype is torch.bfloat16 and DEVICE == "cpu":
        pytest.skip("Triton's interpreter has no bfloat16 products")
    lengths = [0, 1, 2 * block, 70]
    width = -(-(max(lengths) + 1) // block)
    cache, tables = filled_cache(lengths, width, block, kv_heads, dim, dtype)
    other = cache.clone()
    qkv = random(4, 1, (heads + 2 * kv_heads) * dim, dtype=dtype, seed=9)
    of = heads_of(heads, kv_heads, dim, (4, 1), norm, dtype)
    positions = torch.tensor([[length, -1] for length in lengths], device=DEVICE).int()[:, :1]  # with a stride
    expected = reference.paged_step(qkv, of, cache, tables, positions, width)
    close(kernel("paged_step")(qkv, of, other, tables, positions, width), expected, dtype, roundings=2)
    assert torch.equal(cache.isnan(), other.isnan())
    close(other.nan_to_num(), cache.nan_to_num(), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "positions", "norm"),
    cases(
        *((4, 2, 32, 5, True), (6, 2, 16, 8, True), (3, 3, 64, 12, False)),
        gpu=[(4, 2, 32, 5, False), (16, 8, 128, 16, True), (4, 4, 16, 12, True)],
    ),
)
def test_short_attention(
    heads: int,
    kv_heads: int,
    dim: int,
    positions: int,
    norm: bool,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From a frame's opening pair to its last position, in memory that is NaN where nothing was written; with so few
    processors for these rows that a program has several heads, and with many."""
    for first, steps, processors in ((0, 2, 1), (2, 1, 132), (2, 1, 1), (3, 2, 132), (positions - 1, 1, 1)):
        monkeypatch.setattr("sonant.kernels.triton.short._PROCESSORS", processors)
        caches = [torch.full((2, 2, positions, kv_heads, dim), float("nan"), dtype=dtype, device=DEVICE) for _ in "ab"]
        for cache in caches:
            cache[:, :, :first] = random(2, 2, first, kv_heads, dim, dtype=dtype, seed=20)
        qkv = random(2, steps, (heads + 2 * kv_heads) * dim, dtype=dtype, seed=first)
        of = heads_of(heads, kv_heads, dim, (2 if first == 2 else 1, steps), norm, dtype)
        if first >= 2:  # the norm before the projection is still to be finished
            of = of._replace(unscaled=Unscaled(random(2, steps, 48, dtype=dtype, seed=8), 1e-6))
        expected = reference.short_attention(qkv, of, caches[0], first)
        close(kernel("short_attention")(qkv, of, caches[1], first), expected, dtype, roundings=2)
        assert torch.equal(caches[0].isnan(), caches[1].isnan())
        close(caches[1].nan_to_num(), caches[0].nan_to_num(), dtype)
