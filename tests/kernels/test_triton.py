"""Each Triton kernel computes what its reference does: in Triton's interpreter here, on the GPU where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.against import DEVICE, DTYPES, cases, close, kernel, random
from sonant.kernels import reference
from sonant.kernels.reference import Bounds, Heads, Place, Snake
from sonant.kernels.tuning import LIBRARY, Tile

pytest.importorskip("triton")
from sonant.kernels.triton.swiglu import swiglu


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    """As the engine runs: with gradients the reference would take cuDNN's own convolutions, with ten bits on a GPU."""
    with torch.no_grad():
        yield


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 48), (3, 2, 64), (2, 1, 1024), (1, 1, 2048)])
def test_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight = random(*shape, dtype=dtype), random(shape[-1], dtype=dtype)
    close(kernel("rms_norm")(x, weight, 1e-6), reference.rms_norm(x, weight, 1e-6), dtype)


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
    before = random(rows, 1, columns, dtype=dtype, seed=3)

    def exact(function: Any, *values: Any) -> torch.Tensor:
        wide = [v.float() if isinstance(v, torch.Tensor) else v for v in values]
        return function(*wide).to(dtype)

    for op, values in {
        "linear": (x, half),
        "linear_add": (x, half, before),
        "norm_linear": (x, gain, 1e-6, half),
        "norm_gated": (x, gain, 1e-6, weight),
    }.items():
        expected = exact(getattr(reference, op), *values)
        # each finds what the one before left in the counters of `half`; the gated one is alone with `weight`
        for _ in range(2 if op == "norm_gated" else 1):
            given = [v.clone() if v is before else v for v in values]  # it may be written over
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
    """No op of its own: products with many rows end in it."""
    x = random(3, 2, 2 * width, dtype=dtype)
    close(swiglu(x), reference.swiglu(x), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [1, 24, 96])
def test_snake(channels: int, dtype: torch.dtype) -> None:
    x = random(2, 50, channels, dtype=dtype)
    alpha, beta = random(channels, dtype=dtype, seed=1), random(channels, dtype=dtype, seed=2)
    for part in (x, x[:, 3:40], x[:, :1]):
        expected = reference.snake_beta(part.float(), alpha.float(), beta.float()).to(dtype)
        close(kernel("snake_beta")(part, alpha, beta), expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_snake_with_the_factors_themselves(dtype: torch.dtype) -> None:
    """Of more precision than x, of either sign, and none at all."""
    x, alpha = random(2, 50, 24, dtype=dtype), random(24, seed=1)
    alpha[5] = 0
    expected = (x + torch.sin(alpha * x.float()).square() * (alpha + 1e-9).reciprocal()).to(dtype)
    for function in (kernel("snake_beta"), reference.snake_beta):
        close(function(x, alpha, alpha, False), expected, dtype)
    weight, none = torch.eye(24, dtype=dtype, device=DEVICE)[..., None], torch.zeros(24, dtype=dtype, device=DEVICE)
    if dtype is torch.float32 or DEVICE == "cuda":  # Triton's interpreter has no bfloat16 products
        snake = Snake(alpha, alpha, log_scale=False)
        close(kernel("causal_conv")(x, weight, none, None, snake=snake, keep=False)[1], expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("inputs", "channels", "samples", "taps", "dilation", "past"),
    cases(
        *((24, 24, 1, 7, 3, True), (64, 48, 1, 1, 1, False), (32, 16, 5, 2, 1, True), (96, 1, 1, 7, 1, False)),
        *((16, 130, 1, 3, 9, True), (16, 130, 1, 3, 9, False)),
        gpu=[(24, 24, 1, 7, 3, False), (64, 48, 1, 1, 1, True), (32, 16, 5, 2, 1, False), (96, 1, 1, 7, 1, True)],
    ),
)
def test_causal_conv(
    inputs: int, channels: int, samples: int, taps: int, dilation: int, past: bool, dtype: torch.dtype
) -> None:  # fmt: skip
    """Also a transposed convolution, whose columns are several samples of each channel."""
    if dtype is torch.bfloat16 and DEVICE == "cpu":
        pytest.skip("Triton's interpreter has no bfloat16 products")
    columns, steps = channels * samples, 37
    x = random(3, steps + 4, inputs, dtype=dtype)[:, 2:-2]
    weight = (random(columns, taps, inputs, dtype=dtype, seed=1) / (taps * inputs) ** 0.5).permute(0, 2, 1)
    bias, alpha, beta = (random(channels, dtype=dtype, seed=s) for s in (2, 3, 4))
    before = random(3, (taps - 1) * dilation, inputs, dtype=dtype, seed=5) if past else None
    residual = random(3, steps, columns, dtype=dtype, seed=6)
    for extras in (
        {},
        {"snake": Snake(alpha, beta), "keep": False},
        {"snake": Snake(alpha, beta), "residual": residual},
    ):
        expected = reference.causal_conv(x, weight, bias, before, dilation, **extras)
        got = kernel("causal_conv")(x, weight, bias, before, dilation, **extras)
        close(got[1], expected[1], dtype, roundings=2)
        if extras.get("keep", True):
            close(got[0], expected[0], dtype, roundings=2)


TILES = (
    Tile(16, 32, 16, stages=2, wide=True),
    Tile(32, 16, 16, stages=2, splits=3),
    Tile(16, 32, 8 * 4, stages=2, splits=2, group=2, wide=True),
    Tile(64, 16, 16, stages=2, splits=5, group=1),
)


@pytest.mark.parametrize(
    ("tile", "past"),
    cases(
        *((tile, n % 2 == 0) for n, tile in enumerate(TILES)), gpu=((tile, n % 2 == 1) for n, tile in enumerate(TILES))
    ),
    ids=str,
)
def test_a_convolution_is_the_same_in_every_tile(tile: Tile, past: bool) -> None:
    """Nothing divides anything: rows, columns, inputs, and tiles of the depth among splits."""
    inputs, channels, samples, taps, dilation = 24, 21, 3, 3, 5
    x = random(3, 29, inputs)
    weight = (random(channels * samples, taps, inputs, seed=1) / (taps * inputs) ** 0.5).permute(0, 2, 1)
    bias, alpha, beta = (random(channels, seed=s) for s in (2, 3, 4))
    before = random(3, (taps - 1) * dilation, inputs, seed=5) if past else None
    arguments = (x, weight, bias, before, dilation)
    options = {"snake": Snake(alpha, beta), "residual": random(3, 29, channels * samples, seed=6)}
    expected = reference.causal_conv(*arguments, **options)
    for _ in range(2 if tile.splits > 1 else 1):  # the second finds what the first left in its counters
        got = kernel("causal_conv")(*arguments, **options, tile=tile)
        for one, other in zip(got, expected, strict=True):
            close(one, other, torch.float32, roundings=2)


@pytest.mark.parametrize("tile", [None, Tile(16, 32, 16, stages=2, splits=2, wide=True), LIBRARY], ids=str)
@pytest.mark.parametrize(("channels", "samples", "taps"), [(24, 1, 7), (21, 3, 2), (32, 1, 1)])
def test_a_convolution_is_zero_outside_its_bounds(channels: int, samples: int, taps: int, tile: Tile | None) -> None:
    """In a window whose first steps are the past of the rest, over inputs that are NaN where the bounds leave them."""
    steps, inputs, history = 29, 24, taps - 1
    window = random(4, history + steps, inputs)
    weight = (random(channels * samples, taps, inputs, seed=1) / (taps * inputs) ** 0.5).permute(0, 2, 1)
    bias, alpha = random(channels, seed=2), random(channels, seed=3).abs()
    residual = random(4, steps + 6, channels * samples, seed=6)[:, 4:-2]
    start = torch.tensor([-2, 1, 4, 9], dtype=torch.int32, device=DEVICE)  # of 3 samples each, and 2 further on
    end = torch.tensor([99, 5, 4, 20], dtype=torch.int32, device=DEVICE)
    residual[1, 0], residual[3, -1] = float("nan"), float("nan")  # as memory is that nobody wrote
    options: dict[str, Any] = {"residual": residual, "snake": Snake(alpha, alpha, log_scale=False)}
    plain = reference.causal_conv(window[:, history:], weight, bias, window[:, :history], **options)
    got = kernel("causal_conv")(
        window[:, history:], weight, bias, window[:, :history], **options, bounds=Bounds(start, end, 3, 2), tile=tile
    )
    step = torch.arange(steps * samples, device=DEVICE)
    kept = (step >= 3 * start[:, None] + 2) & (step < 3 * end[:, None] + 2)
    assert 0 < int(kept.sum()) < kept.numel()
    for one, whole in zip(got, plain, strict=True):
        expected = whole.view(4, -1, channels).masked_fill(~kept[..., None], 0).view(whole.shape)
        close(one, expected, torch.float32, roundings=2)
        assert torch.equal(one.view(4, -1, channels)[~kept], torch.zeros_like(one.view(4, -1, channels)[~kept]))


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


def test_snake_of_large_angles_stays_bounded() -> None:
    x = torch.tensor([[[1e3], [-1e5], [1e9], [-3e30]]], device=DEVICE)
    none = torch.zeros(1, device=DEVICE)
    moved = kernel("snake_beta")(x, none, none) - x
    assert moved.isfinite().all() and float(moved.abs()[0, 0]) <= 1.0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("channels", "taps", "dilation"), [(24, 7, 1), (130, 3, 1), (24, 7, 3), (40, 7, 9), (16, 2, 5)]
)
def test_depthwise(channels: int, taps: int, dilation: int, dtype: torch.dtype) -> None:
    x, history = random(2, 70, channels, dtype=dtype), (taps - 1) * dilation
    weight, bias = random(channels, 1, taps, dtype=dtype, seed=1), random(channels, dtype=dtype, seed=2)
    apart = random(2, history + 3, channels, dtype=dtype, seed=3)[:, 2:-1]  # rows of a longer buffer
    snake = Snake(random(channels, seed=4), random(channels, seed=5).abs() + 0.2, log_scale=False)
    for part, past in ((x, None), (x, apart), (x[:, 3:68], apart), (x[:, :1], None), (x[:, :4], apart.contiguous())):
        before = None if past is None else past.float()
        plain = reference.depthwise(part.float(), weight.float(), bias.float(), before, dilation).to(dtype)
        close(kernel("depthwise")(part, weight, bias, past, dilation), plain, dtype)
        active = reference.snake_beta(plain, *snake)
        close(kernel("depthwise")(part, weight, bias, past, dilation, snake=snake), active, dtype, roundings=2)


def filled_cache(
    lengths: list[int], width: int, block: int, kv_heads: int, dim: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """A cache with so many positions of each row, NaN wherever nothing was written; its tables of `width` blocks."""
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
    """With memory that is NaN wherever nothing was written."""
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
    cases((4, 2, 32, 4), (4, 4, 16, 12), (5, 5, 64, 16), gpu=[(16, 8, 128, 16)]),
)
def test_a_paged_step(heads: int, kv_heads: int, dim: int, block: int, norm: bool, dtype: torch.dtype) -> None:
    """From an empty cache on, and with memory that is NaN wherever nothing was written."""
    if dtype is torch.bfloat16 and DEVICE == "cpu":
        pytest.skip("Triton's interpreter has no bfloat16 products")
    lengths = [0, 1, 2 * block, 70]
    width = -(-(max(lengths) + 1) // block)
    cache, tables = filled_cache(lengths, width, block, kv_heads, dim, dtype)
    other = cache.clone()
    qkv = random(4, 1, (heads + 2 * kv_heads) * dim, dtype=dtype, seed=9)
    of = heads_of(heads, kv_heads, dim, (4, 1), norm, dtype)
    positions = torch.tensor([[length, -1] for length in lengths], device=DEVICE).int()[:, :1]  # a column of more
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
def test_short_attention(heads: int, kv_heads: int, dim: int, positions: int, norm: bool, dtype: torch.dtype) -> None:
    """From a frame's opening pair to its last position, with memory that is NaN wherever nothing was written."""
    for first, steps in ((0, 2), (2, 1), (3, 2), (positions - 1, 1)):
        caches = [torch.full((2, 2, positions, kv_heads, dim), float("nan"), dtype=dtype, device=DEVICE) for _ in "ab"]
        for cache in caches:
            cache[:, :, :first] = random(2, 2, first, kv_heads, dim, dtype=dtype, seed=20)
        qkv = random(2, steps, (heads + 2 * kv_heads) * dim, dtype=dtype, seed=first)
        of = heads_of(heads, kv_heads, dim, (2 if first == 2 else 1, steps), norm, dtype)
        expected = reference.short_attention(qkv, of, caches[0], first)
        close(kernel("short_attention")(qkv, of, caches[1], first), expected, dtype, roundings=2)
        assert torch.equal(caches[0].isnan(), caches[1].isnan())
        close(caches[1].nan_to_num(), caches[0].nan_to_num(), dtype)
