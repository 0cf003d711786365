"""Attention among a few positions that all see each other, and a guided flow's work between two evaluations."""

from __future__ import annotations

import pytest
import torch

from kernels.against import DEVICE, DTYPES, cases, close, kernel, random
from sonant.kernels import reference
from sonant.kernels.reference import FlowEnds, FlowGiven, Heads
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
        (12, 11, 4, 2, 16, False, None),  # more rows than a tile should have
        (1, 5, 4, 2, 20, False, LIBRARY),
        gpu=[(2, 11, 16, 2, 1024, False, None), (4, 11, 16, 2, 1024, False, None), (1, 5, 16, 2, 1024, False, None)],
    ),
)
def test_local_attention_onto_a_residual(
    batch: int, steps: int, heads: int, kv_heads: int, columns: int, norm: bool, tile: Tile | None, dtype: torch.dtype
) -> None:
    """Memory behind the projection is NaN. Each tile is used twice, since the first run must reset its counters."""
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


@pytest.mark.parametrize("strange", [float("nan"), float("inf")])
@pytest.mark.parametrize("part", [slice(None), slice(-32, None)], ids=["all of it", "its values"])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_sequence_whose_numbers_have_gone_wrong_reaches_no_other(part: slice, strange: float) -> None:
    """All sequences are lines of one tile. A row of padding may hold anything, and a row may go wrong by itself."""
    qkv, residual = random(3, 5, 8 * 16), random(3, 5, 24, seed=6)
    of = Heads(None, None, *(random(1, 5, 1, 16, seed=n) for n in (1, 2)), 4, 2, 1e-5)
    weight = random(24, 64, seed=5) / 8
    qkv[1, 2, part] = strange
    expected = reference.local_attention_add(qkv, of, weight, residual)
    got = kernel("local_attention_add")(qkv, of, weight, residual.clone(), tile=Tile(0, 16, 0, splits=2))
    close(got[[0, 2]], expected[[0, 2]], torch.float32, roundings=3)
    assert not got[1].isfinite().any()


def test_heads_that_do_not_share_keys_are_not_one_programs() -> None:
    of = Heads(None, None, torch.ones(1, 3, 1, 16), torch.zeros(1, 3, 1, 16), 4, 2, 1e-5)
    with pytest.raises(ValueError, match="does not divide"):
        kernel("local_attention_add")(random(1, 3, 128), of, random(8, 64), random(1, 3, 8), tile=Tile(0, 16, splits=1))


def test_every_position_sees_every_other() -> None:
    qkv = random(1, 5, 6 * 16)
    of = Heads(None, None, torch.ones(1, 5, 1, 16, device=DEVICE), torch.zeros(1, 5, 1, 16, device=DEVICE), 4, 1, 1e-5)
    before = reference.local_attention(qkv, of)
    qkv[:, -1, -16:] += 1  # the value of the last position
    assert (reference.local_attention(qkv, of) != before).any(-1).all()


def flow_inputs(
    rows: int, steps: int, channels: int, width: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, FlowGiven, FlowEnds]:
    """Patches, the layers' outputs for their tokens, a time, the conditions, and the flow's end layers. Memory behind
    each is NaN."""

    def inside_nan(*shape: int, seed: int) -> torch.Tensor:
        memory = torch.full((shape[0] + 1, *shape[1:]), float("nan"), dtype=dtype, device=DEVICE)
        return memory[: shape[0]].copy_(random(*shape, dtype=dtype, seed=seed))

    guidance = torch.tensor([[2.0, 9], [1.0, 9], [0.0, 9], [1.5, 9], [3.0, 9]], device=DEVICE)[:rows, 0]
    given = FlowGiven(inside_nan(rows, 2, width, seed=1), inside_nan(rows, steps, width, seed=2), guidance)
    ends = FlowEnds(
        inside_nan(width, channels, seed=3), inside_nan(width, seed=4), inside_nan(width, seed=5), 1e-5,
        inside_nan(channels, width, seed=6) / width**0.5, inside_nan(channels, seed=7),
    )  # fmt: skip
    hidden = inside_nan(2 * rows, 3 + 2 * steps, width, seed=8)
    return random(rows, steps, channels), hidden, inside_nan(width, seed=9), given, ends


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "steps", "channels", "width"),
    cases((1, 4, 16, 256), (5, 3, 9, 40), gpu=[(1, 4, 64, 1024), (5, 4, 64, 1024)]),
)
def test_between_two_evaluations(rows: int, steps: int, channels: int, width: int, dtype: torch.dtype) -> None:
    if dtype is torch.bfloat16 and DEVICE == "cpu":
        pytest.skip("Triton's interpreter has no bfloat16 products")
    x, hidden, time, given, ends = flow_inputs(rows, steps, channels, width, dtype)
    opened = reference.flow_open(x, time, given, ends)
    close(kernel("flow_open")(x, time, given, ends), opened, dtype, roundings=2)
    moved, tokens = reference.flow_turn(x, hidden, 0.125, time, given, ends)
    alone = kernel("flow_move")(x, hidden, 0.125, given, ends)
    both = kernel("flow_turn")(x, hidden, 0.125, time, given, ends)
    for got, expected in zip((alone, *both), (moved, moved, tokens), strict=True):
        assert got.dtype == expected.dtype and got.shape == expected.shape and got.isfinite().all()
        close(got.to(dtype), expected.to(dtype), dtype, roundings=3)
    for row in range(rows):  # other rows make no difference
        pair, own = hidden[[row, row + rows]], FlowGiven(*(part[row : row + 1] for part in given))
        alone = reference.flow_move(x[row : row + 1], pair, 0.125, own, ends)
        close(alone.to(dtype), moved[row : row + 1].to(dtype), dtype, roundings=3)


def test_free_sequences_are_told_nothing_and_move_with_the_guided_ones() -> None:
    x, _, time, given, ends = flow_inputs(3, 4, 8, 32, torch.float32)
    guided, free = reference.flow_open(x, time, given, ends).chunk(2)
    assert (free[:, :2] == 0).all() and torch.equal(guided[:, :2], given.prefix)
    assert torch.equal(guided[:, 2:], free[:, 2:]) and torch.equal(guided[:, 2], time.expand(3, -1))


def test_normals() -> None:
    """They are the reference's, have the given deviation, and differ for every frame and seed."""
    seed = torch.tensor([[1, 2, 0], [1, 2, 0], [3, 2, 0], [-9, -1, 0]], dtype=torch.int32, device=DEVICE)[:, :2]
    frame = torch.tensor([[4, 7], [5, 7], [4, 7], [4, 7]], device=DEVICE)[:, 0]
    scale = torch.tensor([[1.0, 9], [0.5, 9], [1.0, 9], [0.0, 9]], device=DEVICE)[:, 0]
    got, expected = kernel("normals")(seed, frame, scale, 2048), reference.normals(seed, frame, scale, 2048)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
    assert (got[3] == 0).all() and got[:3].unique().numel() > 6000
    for row, wanted in enumerate((1.0, 0.5, 1.0)):
        assert abs(float(got[row].mean())) < 0.1 * wanted and abs(float(got[row].std()) / wanted - 1) < 0.05
    odd = kernel("normals")(seed, frame, scale, 6)
    torch.testing.assert_close(odd, reference.normals(seed, frame, scale, 6), rtol=1e-5, atol=1e-6)


def test_guidance_of_one_is_the_guided_velocity_alone() -> None:
    x, velocity = random(2, 4, 16), random(4, 4, 16, seed=1)
    moved = reference.guided_step(x, velocity, torch.ones(2, device=DEVICE), 0.5)
    close(moved, x - 0.5 * velocity[:2], torch.float32, roundings=3)
