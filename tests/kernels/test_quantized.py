"""Weights of eight bits: kernels compute what the reference does, in Triton's interpreter or on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.against import DEVICE, close, kernel, random
from sonant.kernels import reference
from sonant.kernels.gpu import Gpu, planning_for
from sonant.kernels.reference import Heads, QuantizedWeight, Sides, quantize, quantize_rows, split_kinds
from sonant.kernels.tuning import LIBRARY, Tile

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("no_gradients")
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32  # the interpreter has no bfloat16 products
EPS = 1e-6


def weight(columns: int, depth: int, seed: int = 2) -> QuantizedWeight:
    return quantize(random(columns, depth, seed=seed) / depth**0.5)


def exact(op: str, *values: Any) -> Tensor:
    """The reference's result in float32 arithmetic."""
    wide = [v.float() if isinstance(v, Tensor) else v for v in values]
    return getattr(reference, op)(*wide).to(DTYPE)


def test_the_largest_of_a_channel_is_the_largest_number_there_is() -> None:
    given = random(5, 64)
    given[3] = 0
    made = quantize(given)
    assert made.values.dtype == torch.float8_e4m3fn and made.scale.dtype == torch.float32
    most = made.values.float().abs().amax(1)
    assert most.tolist() == [448, 448, 448, 0, 448]
    back = made.dequantized(torch.float32)
    assert torch.equal(back[3], given[3])
    # half a step of a mantissa of three bits, or of the smallest numbers
    allowed = torch.maximum(given.abs() / 16, made.scale[:, None] * 2**-10)
    assert bool(((back - given).abs() <= allowed * 1.001).all())


@pytest.mark.parametrize(
    ("columns", "depth", "rows"), [(48, 64, 1), (33, 320, 1), (5, 3072, 1), (48, 64, 16), (33, 320, 17), (33, 320, 64)]
)
def test_products_with_few_rows(columns: int, depth: int, rows: int) -> None:
    x, gain = random(rows, 1, depth, dtype=DTYPE), random(depth, dtype=DTYPE, seed=1)
    half, both = weight(columns, depth), weight(2 * columns, depth)
    before = random(rows, 1, columns, dtype=DTYPE, seed=3)
    for op, values in {
        "linear": (x, half, random(columns, dtype=DTYPE, seed=4)) if rows == 1 else (x, half),
        "linear_add": (x, half, before),
        "norm_linear": (x, gain, EPS, half),
        "norm_gated": (x, gain, EPS, both),
    }.items():
        expected = exact(op, *values)
        given = [v.clone() if v is before else v for v in values]
        close(kernel(op)(*given), expected, DTYPE, roundings=3)


@pytest.mark.parametrize(
    "tile",
    [Tile(0, 32, 64, stages=2, splits=3), Tile(0, 16, 64, stages=2, splits=1, fold=4), LIBRARY],
    ids=str,
)
def test_a_product_is_the_same_in_every_tile(tile: Tile) -> None:
    x, gain, both = random(3, 1, 192, dtype=DTYPE), random(192, dtype=DTYPE, seed=1), weight(2 * 37, 192)
    expected = exact("norm_gated", x, gain, EPS, both)
    for _ in range(2):  # the second finds the counters as the first left them
        close(kernel("norm_gated")(x, gain, EPS, both, tile=tile), expected, DTYPE, roundings=3)


def test_the_middle_of_a_local_layer() -> None:
    heads = Heads(None, None, *(random(1, 5, 1, 16, dtype=DTYPE, seed=n) for n in (1, 2)), 4, 2, EPS)
    qkv, o, before = random(2, 5, 8 * 16, dtype=DTYPE), weight(40, 64), random(2, 5, 40, dtype=DTYPE, seed=3)
    expected = reference.local_attention_add(qkv, heads, o, before)
    for tile in (None, Tile(0, 16, 0, stages=1, splits=2), LIBRARY):
        close(kernel("local_attention_add")(qkv, heads, o, before.clone(), tile=tile), expected, DTYPE, roundings=3)


@pytest.mark.parametrize("splits", [1, 2])
def test_two_sides(splits: int) -> None:
    split = split_kinds(torch.tensor([[0, 1, 1, 2, 0, 1, 1]], device=DEVICE))
    x, gains = random(1, 7, 96, dtype=DTYPE), Sides(*(random(96, dtype=DTYPE, seed=n) for n in (1, 2)))
    tile = Tile(16, 16, 32, stages=2, splits=splits)
    up = Sides(*(weight(2 * 24, 96, seed=n) for n in (3, 4)))
    expected = reference.dual_norm_gated(x, split, gains, EPS, up)
    close(kernel("dual_norm_gated")(x, split, gains, EPS, up, tile=tile), expected, DTYPE, roundings=3)
    inner, down = random(1, 7, 24, dtype=DTYPE, seed=5), Sides(*(weight(96, 24, seed=n) for n in (6, 7)))
    expected = reference.dual_linear_add(inner, split, down, x)
    close(kernel("dual_linear_add")(inner, split, down, x.clone(), tile=tile), expected, DTYPE, roundings=3)


def on_the_grid(*shape: int, seed: int = 0) -> Tensor:
    """Values that are exact in e4m3, also scaled by a row's largest: the interpreter does not round as a GPU does."""
    drawn = random(*shape, seed=seed).cpu().clamp(-2, 2).to(torch.float8_e4m3fn).float()
    drawn[..., 0] = 448.0 / 128
    return drawn.to(DEVICE)


def test_rows_are_quantised_by_their_largest() -> None:
    from sonant.kernels.triton import quantize as kernels

    x = on_the_grid(3, 80)
    x[1] = 0
    values, scales = kernels.quantize_rows(x)
    expected, factors = quantize_rows(x)
    assert torch.equal(values.float(), expected.float()) and torch.equal(scales, factors)
    gain = torch.full((80,), 2.0, device=DEVICE)
    values, scales = kernels.quantize_rows(x, (gain, EPS))
    close(values.float() * scales, reference.rms_norm(x, gain, EPS), torch.bfloat16, roundings=3)
    one = x.clone()
    one[0] = float("nan")
    values, scales = kernels.quantize_rows(one)  # what a row of padding holds reaches no other row
    assert torch.equal(values[1:].float(), expected[1:].float()) and torch.equal(scales[1:], factors[1:])


def as_a_gpu_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quantize rows by the reference, since the interpreter does not round as a GPU does."""
    from sonant.kernels.triton import scaled_product

    def rows(x: Tensor, norm: tuple[Tensor, float] | None) -> tuple[Tensor, Tensor]:
        return quantize_rows(x if norm is None else reference.rms_norm(x, *norm))

    monkeypatch.setattr(scaled_product, "quantize_rows", rows)


def both_rounded(x: Tensor, weight: QuantizedWeight) -> Tensor:
    """The product in float32 of x and the weight, both rounded to eight bits."""
    values, scales = quantize_rows(x)
    return reference.linear(values.float() * scales, weight)


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("rows", [17, 70, 128])
def test_many_rows_in_eight_bits_on_both_sides(rows: int, splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == "cpu":
        as_a_gpu_rounds(monkeypatch)
    depth, columns, tile = 128, 40, Tile(64, 32, 64, stages=2, splits=splits)
    x, gain = random(rows, 1, depth, dtype=torch.bfloat16), random(depth, dtype=torch.bfloat16, seed=1)
    half, both, before = weight(columns, depth), weight(2 * columns, depth), random(rows, 1, columns, seed=3).bfloat16()
    normed = reference.rms_norm(x, gain, EPS)
    expected = {
        "linear": ((x, half), both_rounded(x, half)),
        "linear_add": ((x, half, before), before.float() + both_rounded(x, half)),
        "norm_linear": ((x, gain, EPS, half), both_rounded(normed, half)),
        "norm_gated": ((x, gain, EPS, both), reference.swiglu(both_rounded(normed, both))),
    }
    for op, (values, wanted) in expected.items():
        for _ in range(2 if op == "norm_gated" else 1):  # the second finds the counters as the first left them
            given = [v.clone() if v is before else v for v in values]
            close(kernel(op)(*given, tile=tile), wanted.bfloat16(), torch.bfloat16)


@pytest.mark.parametrize(("rows", "tile"), [(17, None), (70, Tile(64, 32, 64, stages=2, splits=2)), (70, LIBRARY)])
def test_an_input_that_comes_in_eight_bits(rows: int, tile: Tile | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its values count as they are, without a scale: in our kernels, and where the library's product is unavailable."""
    monkeypatch.setattr("sonant.kernels.triton.scaled_product.quantize_rows", None)  # it must not be rounded again
    x = on_the_grid(rows, 1, 128).to(torch.float8_e4m3fn)
    w, before = weight(40, 128), random(rows, 1, 40, seed=3).bfloat16()
    expected = before.float() + reference.linear(x.float(), w)
    got = kernel("linear_add")(x, w, before.clone(), tile=tile)
    assert got.dtype == torch.bfloat16
    close(got, expected.bfloat16(), torch.bfloat16)


@pytest.mark.parametrize(
    ("rows", "capability", "bounded"), [(16, (9, 0), True), (17, (8, 9), True), (17, (9, 0), False)]
)
def test_heads_leave_sixteen_bits(rows: int, capability: tuple[int, int], bounded: bool) -> None:
    from sonant.kernels.triton.scaled_product import mixed_dtype

    qkv, empty = torch.empty(rows, 1, 64, dtype=torch.bfloat16), torch.empty(0)
    heads = Heads(None, None, empty, empty, 2, 1, EPS, bounded=bounded)
    with planning_for(Gpu("a GPU", capability)):
        assert mixed_dtype(qkv, heads) == torch.bfloat16
    with planning_for(Gpu("a GPU", (9, 0))):  # the condition that fails above holds here
        more = torch.empty(17, 1, 64, dtype=torch.bfloat16)
        assert mixed_dtype(more, heads._replace(bounded=True)) == torch.float8_e4m3fn


def test_attention_leaves_eight_bits_where_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention over one position gives its value, which is exact in e4m3: the interpreter would not round others as a
    GPU does."""
    for module in ("short", "paged"):
        monkeypatch.setattr(f"sonant.kernels.triton.{module}.mixed_dtype", lambda *given: torch.float8_e4m3fn)
    rope = torch.ones(1, 1, 1, 32, dtype=DTYPE, device=DEVICE)
    heads = Heads(None, None, rope, torch.zeros_like(rope), 4, 2, EPS, bounded=True)
    qkv = on_the_grid(3, 1, 8 * 32).to(DTYPE)
    value = qkv.view(3, 8, 32)[:, 6:].repeat_interleave(2, dim=1)[:, None].float()
    made = kernel("short_attention")(qkv, heads, torch.zeros(2, 3, 4, 2, 32, dtype=DTYPE, device=DEVICE), 0)
    assert made.dtype == torch.float8_e4m3fn and torch.equal(made.float(), value)
    from sonant.kernels.triton import paged

    cache = torch.zeros(2, 4, 16, 2, 32, dtype=DTYPE, device=DEVICE)
    tables = torch.arange(1, 4, dtype=torch.int32, device=DEVICE)[:, None]
    made = paged.paged_step(qkv, heads, cache, tables, torch.zeros_like(tables), 1)
    assert made.dtype == torch.float8_e4m3fn and torch.equal(made.float(), value)


def test_the_librarys_product_is_hoppers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from sonant.kernels.triton import scaled_product

    as_a_gpu_rounds(monkeypatch)
    asked: list[tuple[Any, ...]] = []

    def scaled_mm(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Any, **options: Any) -> Tensor:
        asked.append((a.shape, b.shape, scale_a.shape, scale_b.shape))
        return ((a.float() @ b.float()) * scale_a * scale_b).to(options["out_dtype"])

    monkeypatch.setattr(torch, "_scaled_mm", scaled_mm)
    x, before = (random(70, 1, width).bfloat16().cpu() for width in (32, 48))
    w = quantize(random(48, 32).cpu())
    for capability, wanted in (((9, 0), both_rounded(x, w)), ((8, 9), reference.linear(x.float(), w))):
        asked.clear()
        around = scaled_product.Around(residual=before.clone())
        with planning_for(Gpu("a GPU", capability)):
            got = scaled_product.scaled_product(x, w, around, LIBRARY)
        close(got, (before.float() + wanted).bfloat16(), torch.bfloat16)
        assert asked == ([((70, 32), (32, 48), (70, 1), (1, 48))] if capability == (9, 0) else [])
    with planning_for(Gpu("an older GPU", (8, 9))):  # our own tiles are too large for it
        got = scaled_product.scaled_product(x, w, scaled_product.Around())
    close(got, reference.linear(x.float(), w).bfloat16(), torch.bfloat16)
    with planning_for(Gpu("a GPU", (9, 0))):
        assert not scaled_product.in_library(x, weight(40, 32))  # 40 is no multiple of 16
        assert not scaled_product.in_library(x.float(), w)


@pytest.mark.parametrize(("capability", "columns", "widened"), [((9, 0), 48, 16), ((9, 0), 40, 64), ((8, 9), 48, 64)])
def test_inputs_have_eight_bits_from_17_rows_on_where_the_gpu_has_such_products(
    capability: tuple[int, int], columns: int, widened: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sonant.kernels.triton import gemv, small_m_gemm

    both: list[int] = []
    monkeypatch.setattr(gemv, "scaled_product", lambda x, *given: both.append(len(x)))
    monkeypatch.setattr(small_m_gemm, "product", lambda *given, **options: True)
    w = quantize(random(columns, 32).cpu())
    with planning_for(Gpu("a GPU", capability)):
        for rows in (2, 16, 17, 64, 65):
            gemv.linear(torch.zeros(rows, 1, 32, dtype=torch.bfloat16), w)
    assert both == [rows for rows in (2, 16, 17, 64, 65) if rows > widened]


def test_values_of_32_bits_are_not_rounded() -> None:
    x, w = random(70, 1, 64), weight(48, 64)
    close(kernel("linear")(x, w), reference.linear(x, w), torch.float32, roundings=3)
