"""Two-sided layers: each position gets its own side's weights, and padding reaches no other position. Kernels run as
in test_triton.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.against import DEVICE, DTYPES, close, kernel, random
from sonant.kernels import reference
from sonant.kernels.reference import Sides, Split, split_kinds
from sonant.kernels.tuning import LIBRARY, Tile

pytestmark = pytest.mark.usefixtures("no_gradients")

EPS = 1e-5
HIDDEN, INNER = 96, 40


def kinds_of(batch: int, steps: int, seed: int = 0, padding: bool = True) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 3 if padding else 2, (batch, steps), generator=g).to(DEVICE)


def sides(*shape: int, dtype: torch.dtype, seed: int) -> Sides:
    scale = shape[-1] ** -0.5 if len(shape) > 1 else 1.0
    return Sides(*((scale * random(*shape, seed=seed + n)).to(dtype) for n in (0, 100)))


def arguments(kinds: Tensor, dtype: torch.dtype = torch.float32) -> dict[str, tuple[Any, ...]]:
    """Each op's arguments. They are NaN at padding, except in the residual stream."""
    split = split_kinds(kinds)
    nan = torch.full((), float("nan"), dtype=dtype, device=DEVICE)
    x, inner, residual = (random(*kinds.shape, n, dtype=dtype, seed=n) for n in (HIDDEN, INNER, HIDDEN))
    x, inner = (torch.where(split.kinds[..., None] == 2, nan, value) for value in (x, inner))
    gains = sides(HIDDEN, dtype=dtype, seed=1)
    return {
        "dual_norm": (x, split, gains, EPS),
        "dual_norm_gated": (x, split, gains, EPS, sides(2 * INNER, HIDDEN, dtype=dtype, seed=2)),
        "dual_linear_add": (inner, split, sides(HIDDEN, INNER, dtype=dtype, seed=3), residual),
    }


def run(op: Any, values: tuple[Any, ...], **options: Any) -> Tensor:
    """Run the op on copies, since a residual may be overwritten."""
    return op(*(v.clone() if isinstance(v, Tensor) else v for v in values), **options)


def test_a_split_lists_text_then_audio_then_padding_in_their_order() -> None:
    split = split_kinds(torch.tensor([[1, 0, 2], [0, 1, 1], [2, 0, 0]]))
    assert split.order.tolist() == [1, 3, 7, 8, 0, 4, 5, 2, 6]
    assert split.counts.tolist() == [4, 3]
    assert {value.dtype for value in split} == {torch.int32}


def test_no_shape_depends_on_values_and_none_is_waited_for() -> None:
    """On the meta device, which has shapes and no values."""
    x, inner = torch.empty(2, 5, HIDDEN, device="meta"), torch.empty(2, 5, INNER, device="meta")
    gains, up, down = (Sides(*(torch.empty(s, device="meta") for _ in "ab"))
                       for s in ((HIDDEN,), (2 * INNER, HIDDEN), (HIDDEN, INNER)))  # fmt: skip
    split = split_kinds(torch.empty(2, 5, device="meta"))
    assert (split.order.shape, split.counts.shape) == ((10,), (2,))
    assert reference.dual_norm(x, split, gains, EPS).shape == x.shape
    assert reference.dual_norm_gated(x, split, gains, EPS, up).shape == inner.shape
    assert reference.dual_linear_add(inner, split, down, x).shape == x.shape


def test_the_reference_is_each_position_by_itself_with_its_sides_weights() -> None:
    for name, values in arguments(kinds_of(3, 7)).items():
        got = run(getattr(reference, name), values)
        x, split = values[:2]
        for row, column in torch.cartesian_prod(torch.arange(3), torch.arange(7)).tolist():
            side, one = int(split.kinds[row, column]), x[row, column][None, None]
            if side == 2:
                expected = values[3][row, column] if name == "dual_linear_add" else torch.zeros_like(got[row, column])
            elif name == "dual_linear_add":
                expected = reference.linear_add(one, values[2][side], values[3][row, column][None, None])[0, 0]
            elif name == "dual_norm":
                expected = reference.rms_norm(one, values[2][side], EPS)[0, 0]
            else:
                expected = reference.norm_gated(one, values[2][side], EPS, values[4][side])[0, 0]
            torch.testing.assert_close(got[row, column], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("batch", "steps", "most"),
    [
        pytest.param(2, 23, 3, id="mixed"),
        pytest.param(1, 1, 1, id="one text position"),
        pytest.param(3, 11, 1, id="text alone"),
        pytest.param(1, 17, 2, id="no padding"),
    ],
)
def test_kernels_compute_what_the_reference_does(batch: int, steps: int, most: int, dtype: torch.dtype) -> None:
    pytest.importorskip("triton")
    kinds = torch.randint(0, most, (batch, steps), generator=torch.Generator().manual_seed(steps)).to(DEVICE)
    for name, values in arguments(kinds, dtype).items():
        if dtype is torch.bfloat16 and DEVICE == "cpu" and name != "dual_norm":
            continue  # Triton's interpreter has no bfloat16 products
        close(run(kernel(name), values), run(getattr(reference, name), values), dtype, roundings=3)


@pytest.mark.parametrize("kind", [1, 2])
def test_a_prefill_may_be_of_one_kind(kind: int) -> None:
    """All audio, or all padding, as in a warm-up."""
    pytest.importorskip("triton")
    for name, values in arguments(torch.full((2, 5), kind, device=DEVICE)).items():
        got, expected = run(kernel(name), values), run(getattr(reference, name), values)
        if kind == 2:
            assert torch.equal(got, expected)
        else:
            close(got, expected, torch.float32, roundings=3)


@pytest.mark.parametrize(
    "tile",
    [
        Tile(16, 32, 64, stages=2),
        Tile(16, 64, 32, stages=2, splits=2),
        Tile(64, 64, 16, stages=2, splits=3),
        LIBRARY,
    ],
    ids=str,
)
def test_a_product_is_the_same_in_every_tile(tile: Tile) -> None:
    """Nothing fills its tiles: rows of either side, columns, depth; nor do tiles of the depth divide among splits."""
    pytest.importorskip("triton")
    for name, values in arguments(kinds_of(3, 19)).items():
        if name == "dual_norm":
            continue
        expected = run(getattr(reference, name), values)
        for _ in range(min(2, tile.splits)):  # the second finds the counters as the first left them
            close(run(kernel(name), values, tile=tile), expected, torch.float32, roundings=3)


def test_a_layer_of_kernels_leaves_padding_as_it_was_and_lets_it_reach_nobody() -> None:
    pytest.importorskip("triton")
    values = arguments(kinds_of(2, 9))
    gains, weights = values["dual_norm_gated"][2], values["dual_norm_gated"][4]
    down, stream = values["dual_linear_add"][2:]
    split: Split = values["dual_norm"][1]
    padding = split.kinds == 2
    results = []
    for fill in (1.0, float("nan")):
        x = torch.where(padding[..., None], fill, stream)
        inner = kernel("dual_norm_gated")(x, split, gains, EPS, weights)
        results.append(kernel("dual_linear_add")(inner, split, down, x.clone()))
        assert torch.equal(results[-1].nan_to_num(7.0)[padding], x.nan_to_num(7.0)[padding])
        assert torch.equal(results[-1][~padding], results[0][~padding])


@pytest.mark.gpu
def test_a_graph_serves_whatever_kinds_come() -> None:
    values = arguments(kinds_of(3, 40))
    gains, weights = values["dual_norm_gated"][2], values["dual_norm_gated"][4]
    down, stream = values["dual_linear_add"][2:]
    kinds = kinds_of(3, 40)

    def layer(which: Any) -> Tensor:
        split = split_kinds(kinds)
        inner = which("dual_norm_gated")(stream, split, gains, EPS, weights)
        return which("dual_linear_add")(inner, split, down, stream.clone())

    layer(kernel)  # compiles, which is not allowed during a capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = layer(kernel)
    for other in (kinds_of(3, 40, seed=1), torch.ones_like(kinds), kinds_of(3, 40, seed=2, padding=False)):
        kinds.copy_(other)
        graph.replay()
        close(got, layer(lambda name: getattr(reference, name)), torch.float32, roundings=3)
