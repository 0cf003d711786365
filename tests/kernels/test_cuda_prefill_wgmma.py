"""The source of prefills by warpgroups' products, run on a CPU by `hopper_on_cpu.h`, computes what the reference does.

Items that blocks take one after another, rings, turns of the warpgroups and swizzled lines are all tested; a GPU's
memory model is not.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from kernels.hopper_on_cpu import HopperOnCpu
from kernels.paged_cases import RELATIVE_ERROR, Shape, draw, error_of, exact_attention, prefill_call
from sonant.kernels.cuda import attention, prefill_wgmma
from sonant.kernels.cuda.attention import PrefillForm
from sonant.kernels.cuda.kernel import CudaKernel

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here"),
]
BLOCKS = (8, 16, 32, 64, 128)


@pytest.fixture(autouse=True)
def on_cpu(hopper: HopperOnCpu, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    hopper.take_over(monkeypatch)
    with torch.no_grad():
        yield


def check(shape: Shape, seed: int, queries: int, processors: int = 132) -> None:
    call = prefill_call(shape, seed, "cpu")
    assert attention.refusal(call[0], shape.heads, call[1], call[2], call[3]) is None
    assert prefill_wgmma.refusal(call[1]) is None
    got = prefill_wgmma.prefill(*call, queries, processors=processors)
    assert error_of(got, exact_attention(*call)) < RELATIVE_ERROR, (shape, seed)


@pytest.mark.parametrize("queries", prefill_wgmma.QUERIES)
@pytest.mark.parametrize("seed", range(10))
def test_prefills_of_drawn_shapes(seed: int, queries: int) -> None:
    rng = random.Random(seed)
    shape = draw(rng, most_rows=3, most_length=300, most_queries=90)
    kv_heads = min(2, shape.kv_heads)
    heads = shape.heads // shape.kv_heads * kv_heads
    check(replace(shape, kv_heads=kv_heads, heads=heads, block=rng.choice(BLOCKS)), seed, queries, rng.randint(1, 6))


@pytest.mark.parametrize("queries", prefill_wgmma.QUERIES)
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("block", BLOCKS)
def test_every_size_of_a_page(block: int, dim: int, queries: int) -> None:
    """A tile has several pages or one, and the last page is not full; one row begins in the middle of a page."""
    check(Shape(2, 1, dim, block, (301, 5), 40, False, True, 1), block, queries)


@pytest.mark.parametrize("queries", prefill_wgmma.QUERIES)
@pytest.mark.parametrize("heads", [1, 3, 5, 16])
def test_any_number_of_heads_over_one(heads: int, queries: int) -> None:
    """The queries of one position may be in two items."""
    check(Shape(heads, 1, 64, 16, (130,), 21, heads % 2 > 0, True, 0), heads, queries, processors=2)


@pytest.mark.parametrize("length", [127, 128, 129, 255, 256, 640])
@pytest.mark.parametrize("queries", prefill_wgmma.QUERIES)
def test_where_a_tile_ends_so_does_no_row(queries: int, length: int) -> None:
    """One row from its first position on, over many tiles, by one block that takes all items."""
    check(Shape(2, 1, 64, 64, (0,), length, False, True, 1), length + 1, queries, processors=1)


@pytest.mark.parametrize("queries", prefill_wgmma.QUERIES)
def test_who_sees_nothing_gets_zeros_and_reads_nothing(queries: int) -> None:
    """Some of an item's queries see nothing, and all of another's."""
    q, cache, tables, positions, span = prefill_call(Shape(2, 1, 128, 16, (0, 50), 70, False, True, 0), 1, "cpu")
    positions[0, :] = -1
    positions[1, 3:9] = -1
    got = prefill_wgmma.prefill(q, cache, tables, positions, span, queries)
    assert not got[0].any() and not got[1, 3:9].any() and bool(got.isfinite().all()) and bool(got[1, 9:].any())


@pytest.mark.parametrize("queries", prefill_wgmma.QUERIES)
def test_no_position_beyond_the_span_is_seen(queries: int) -> None:
    """Pages beyond it may belong to other rows."""
    q, cache, tables, positions, _ = prefill_call(Shape(2, 1, 64, 16, (60,), 40, False, True, 2), 3, "cpu")
    positions = torch.arange(60, 100).view(1, -1).int()
    got = prefill_wgmma.prefill(q, cache, tables, positions, 5, queries)
    expected = exact_attention(q, cache, tables, positions.clamp(max=79), 5)
    assert error_of(got, expected) < RELATIVE_ERROR


def test_items_are_taken_once_and_counted_anew_by_the_next_launch() -> None:
    shape = Shape(4, 2, 64, 16, (0, 200, 31), 90, False, True, 0)
    q, cache, tables, positions, span = prefill_call(shape, 1, "cpu")
    expected = exact_attention(q, cache, tables, positions, span)
    for processors in (3, 1, 132):
        got = prefill_wgmma.prefill(q, cache, tables, positions, span, 128, processors=processors)
        assert error_of(got, expected) < RELATIVE_ERROR


@pytest.mark.parametrize(
    ("cache", "said"),
    [
        (torch.zeros(2, 3, 16, 2, 64, dtype=torch.float8_e4m3fn), "not bfloat16"),
        (torch.zeros(2, 3, 12, 2, 64, dtype=torch.bfloat16), "12 positions"),
        (torch.zeros(2, 3, 4, 2, 64, dtype=torch.bfloat16), "4 positions"),
        (torch.zeros(2, 3, 256, 2, 64, dtype=torch.bfloat16), "256 positions"),
    ],
)
def test_which_caches_it_does_not_take(cache: torch.Tensor, said: str) -> None:
    assert said in str(prefill_wgmma.refusal(cache))


def test_what_it_does_not_take_goes_to_the_others() -> None:
    """A benchmark may ask for this kernel, but blocks of 12 positions go to the kernel of one warpgroup."""
    asked = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CudaKernel, "launch", lambda kernel, *given: asked.append(kernel.entry))
        for block in (12, 16):
            call = prefill_call(Shape(2, 1, 64, block, (20,), 5, False, True, 0), 1, "cpu")
            attention.paged_attention(*call, form=PrefillForm(64, wgmma=True))
    assert asked == ["paged_prefill_64", "paged_prefill_wgmma_64"]
