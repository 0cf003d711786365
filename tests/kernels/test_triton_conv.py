"""Convolutions and their activation in Triton compute what their references do. Kernels run as in test_triton.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels.against import DEVICE, DTYPES, cases, close, kernel, random
from sonant.kernels import reference
from sonant.kernels.reference import Bounds, Snake
from sonant.kernels.tuning import LIBRARY, Tile

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("no_gradients")


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
    """Factors are more precise than x, of either sign, and one is 0."""
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
    """Including transposed convolutions, whose columns are several samples of each channel."""
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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("inputs", "past"), cases((24, True), (32, False), gpu=[(96, True), (96, False), (24, False)]))
def test_a_convolution_to_one_channel_reads_its_inputs_once(inputs: int, past: bool, dtype: torch.dtype) -> None:
    """By several programs, whose first results need lines of the previous program."""
    if dtype is torch.bfloat16 and DEVICE == "cpu":
        pytest.skip("Triton's interpreter has no bfloat16 products")
    x = random(2, 640, inputs, dtype=dtype)[:, 3:-20]
    weight = (random(1, 7, inputs, dtype=dtype, seed=1) / (7 * inputs) ** 0.5).permute(0, 2, 1)
    bias = random(1, dtype=dtype, seed=2)
    before = random(2, 9, inputs, dtype=dtype, seed=3)[:, 2:8] if past else None
    got = kernel("causal_conv")(x, weight, bias, before)
    for one, other in zip(got, reference.causal_conv(x, weight, bias, before), strict=True):
        close(one, other, dtype, roundings=2)


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
    """Nothing fills its tiles: rows, columns, inputs; nor do tiles of the depth divide among splits."""
    inputs, channels, samples, taps, dilation = 24, 21, 3, 3, 5
    x = random(3, 29, inputs)
    weight = (random(channels * samples, taps, inputs, seed=1) / (taps * inputs) ** 0.5).permute(0, 2, 1)
    bias, alpha, beta = (random(channels, seed=s) for s in (2, 3, 4))
    before = random(3, (taps - 1) * dilation, inputs, seed=5) if past else None
    arguments = (x, weight, bias, before, dilation)
    options = {"snake": Snake(alpha, beta), "residual": random(3, 29, channels * samples, seed=6)}
    expected = reference.causal_conv(*arguments, **options)
    for _ in range(2 if tile.splits > 1 else 1):  # the second finds the counters as the first left them
        got = kernel("causal_conv")(*arguments, **options, tile=tile)
        for one, other in zip(got, expected, strict=True):
            close(one, other, torch.float32, roundings=2)


@pytest.mark.parametrize("tile", [None, Tile(16, 32, 16, stages=2, splits=2, wide=True), LIBRARY], ids=str)
@pytest.mark.parametrize(("channels", "samples", "taps"), [(24, 1, 7), (21, 3, 2), (32, 1, 1)])
def test_a_convolution_is_zero_outside_its_bounds(channels: int, samples: int, taps: int, tile: Tile | None) -> None:
    """In a window whose first steps are the past of the rest, with a residual that is NaN in places out of bounds."""
    steps, inputs, history = 29, 24, taps - 1
    window = random(4, history + steps, inputs)
    weight = (random(channels * samples, taps, inputs, seed=1) / (taps * inputs) ** 0.5).permute(0, 2, 1)
    bias, alpha = random(channels, seed=2), random(channels, seed=3).abs()
    residual = random(4, steps + 6, channels * samples, seed=6)[:, 4:-2]
    start = torch.tensor([-2, 1, 4, 9], dtype=torch.int32, device=DEVICE)  # of 3 samples each, offset by 2
    end = torch.tensor([99, 5, 4, 20], dtype=torch.int32, device=DEVICE)
    residual[1, 0], residual[3, -1] = float("nan"), float("nan")  # like memory that was never written
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


def test_snake_of_large_angles_stays_bounded() -> None:
    x = torch.tensor([[[1e3], [-1e5], [1e9], [-3e30]]], device=DEVICE)
    none = torch.zeros(1, device=DEVICE)
    moved = kernel("snake_beta")(x, none, none) - x
    assert moved.isfinite().all() and float(moved.abs()[0, 0]) <= 1.0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("channels", "taps", "dilation"), cases((130, 3, 1), (24, 7, 3), (16, 2, 5), gpu=[(24, 7, 1), (40, 7, 9)])
)
def test_depthwise(channels: int, taps: int, dilation: int, dtype: torch.dtype) -> None:
    x, history = random(2, 70 if DEVICE == "cuda" else 24, channels, dtype=dtype), (taps - 1) * dilation
    weight, bias = random(channels, 1, taps, dtype=dtype, seed=1), random(channels, dtype=dtype, seed=2)
    apart = random(2, history + 3, channels, dtype=dtype, seed=3)[:, 2:-1]  # rows of a longer buffer
    snake = Snake(random(channels, seed=4), random(channels, seed=5).abs() + 0.2, log_scale=False)
    for part, past in ((x, None), (x, apart), (x[:, 3:-2], apart), (x[:, :1], None), (x[:, :4], apart.contiguous())):
        before = None if past is None else past.float()
        plain = reference.depthwise(part.float(), weight.float(), bias.float(), before, dilation).to(dtype)
        close(kernel("depthwise")(part, weight, bias, past, dilation), plain, dtype)
        active = reference.snake_beta(plain, *snake)
        close(kernel("depthwise")(part, weight, bias, past, dilation, snake=snake), active, dtype, roundings=2)
