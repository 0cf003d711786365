"""Attention over a ring in one kernel gives the reference's results, call after call, and leaves the same ring."""

from __future__ import annotations

import pytest
import torch

from kernels.against import DEVICE, DTYPES, cases, close, kernel, random
from sonant.kernels import reference
from sonant.kernels.reference import Heads, RingPlace

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("no_gradients")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "window", "most", "norm"),
    cases((4, 2, 16, 5, 4, True), (2, 2, 32, 9, 3, False), gpu=[(16, 16, 64, 72, 16, False), (8, 2, 64, 72, 4, True)]),
)
def test_pieces_of_any_length_see_their_window(
    heads: int, kv_heads: int, dim: int, window: int, most: int, norm: bool, dtype: torch.dtype
) -> None:
    """Rows are at different positions, one of them almost twice around its ring; other rows of the buffer stay as they
    are."""
    if dtype is torch.bfloat16 and DEVICE == "cpu":
        pytest.skip("Triton's interpreter has no bfloat16 products")
    slots = -(-(window - 1 + most) // 8) * 8
    rings = [torch.zeros(2, 4, slots, kv_heads, dim, dtype=dtype, device=DEVICE) for _ in range(2)]
    rows = torch.tensor([2, 0], device=DEVICE)
    first = torch.tensor([0, 2 * slots - 1], dtype=torch.int32, device=DEVICE)
    gains = (random(dim, dtype=dtype, seed=1), random(dim, dtype=dtype, seed=2)) if norm else (None, None)
    for number, steps in enumerate((most, 1, most, 1, most, most)):
        qkv = random(2, steps, (heads + 2 * kv_heads) * dim, dtype=dtype, seed=10 + number)
        turns = (random(2, steps, 1, dim, dtype=dtype, seed=s + number) for s in (30, 50))
        of = Heads(*gains, *turns, heads, kv_heads, 1e-6)
        place = RingPlace(rows, first[:, None] + torch.arange(steps, device=DEVICE), window, slots)
        expected = reference.ring_attention(qkv, of, rings[0], place)
        close(kernel("ring_attention")(qkv, of, rings[1], place), expected, dtype, roundings=2)
        close(rings[1], rings[0], dtype)
        first += steps
    assert not rings[1][:, [1, 3]].any()


def test_what_nobody_wrote_does_not_matter() -> None:
    """Even if it is NaN, which the reference cannot ignore."""
    ring = torch.full((2, 3, 8, 2, 16), float("nan"), device=DEVICE)
    rows, window = torch.tensor([1], device=DEVICE), 5
    of = Heads(None, None, random(1, 2, 1, 16), random(1, 2, 1, 16, seed=1), 2, 2, 1e-6)
    for first in (0, 2, 4):
        place = RingPlace(rows, torch.tensor([[first, first + 1]], device=DEVICE), window, 8)
        got = kernel("ring_attention")(random(1, 2, 96, seed=first), of, ring, place)
        assert got.isfinite().all()
    assert ring[:, 1, :6].isfinite().all() and ring[:, 1, 6:].isnan().all() and ring[:, [0, 2]].isnan().all()


def test_a_call_that_its_ring_has_no_room_for_is_refused() -> None:
    with pytest.raises(AssertionError, match="more than its ring has room for"):
        RingPlace(torch.zeros(1), torch.zeros(1, 5), 5, 8)
