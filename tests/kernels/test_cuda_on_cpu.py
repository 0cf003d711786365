"""The source of our CUDA kernels, run on a CPU by `cuda_on_cpu.h`, computes what the reference does.

Tiles, permutations, masks, shares of a row and barriers are all tested; a GPU's memory model is not.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels.cpu_machine import OnCpu
from kernels.paged_cases import (
    BLOCKS,
    RELATIVE_ERROR,
    Shape,
    cache_error,
    draw,
    error_of,
    exact_attention,
    exact_step,
    prefill_call,
    step_call,
)
from sonant.kernels.cuda import attention
from sonant.kernels.cuda.attention import ALONE, LONG, LONG_PAIR, NARROW, PAIR, SMALL, WIDE, DecodeForm, PrefillForm
from sonant.kernels.cuda.exchange import exchange_buffer
from sonant.kernels.reference import Heads

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here"),
]


@pytest.fixture(autouse=True)
def on_cpu(machine: OnCpu, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    machine.take_over(monkeypatch)
    with torch.no_grad():
        yield


def check_step(shape: Shape, seed: int, **options: Any) -> None:
    call = step_call(shape, seed, "cpu")
    other = call[2].clone()
    expected = exact_step(*call)
    assert attention.refusal(call[0], shape.heads, other, call[3], call[4]) is None
    got = attention.paged_step(*call[:2], other, *call[3:], **options)
    assert error_of(got, expected) < RELATIVE_ERROR, (shape, seed)
    assert cache_error(other, call[2]) < shape.cache_error, (shape, seed)


@pytest.mark.parametrize("eight", [False, True])
@pytest.mark.parametrize("seed", range(16))
def test_steps_of_drawn_shapes(seed: int, eight: bool) -> None:
    shape = draw(random.Random(seed), most_rows=3, most_length=400, most_queries=1)
    kv_heads = min(2, shape.kv_heads)
    heads = shape.heads // shape.kv_heads * kv_heads
    check_step(replace(shape, kv_heads=kv_heads, heads=heads, eight=eight), seed)


@pytest.mark.parametrize(("splits", "form"), [(1, SMALL), (3, NARROW)])
def test_results_in_eight_bits(splits: int, form: DecodeForm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results of rows that one block has and of a row that several share are rounded to a mantissa of three bits."""
    monkeypatch.setattr("sonant.kernels.triton.scaled_product.mixed_dtype", lambda *given: torch.float8_e4m3fn)
    call = step_call(Shape(4, 2, 64, 16, (900, 30, 0), 1, False, True, 1), 1, "cpu")
    expected = exact_step(*call).float()
    got = attention.paged_step(*call[:2], call[2].clone(), *call[3:], splits=splits, form=form)
    assert got.dtype == torch.float8_e4m3fn
    allowed = (expected.abs() * (2**-4 + RELATIVE_ERROR)).clamp(min=2**-10) * 1.01
    assert bool(((got.float() - expected).abs() <= allowed + RELATIVE_ERROR * expected.std()).all())


@pytest.mark.parametrize("eight", [False, True])
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize(("splits", "form"), [(1, SMALL), (2, WIDE), (5, ALONE), (5, NARROW), (3, PAIR), (3, ALONE)])
def test_shares_of_a_long_row_are_put_together_by_whoever_comes_last(
    dim: int, splits: int, form: DecodeForm, eight: bool
) -> None:
    """Other rows are too short to be shared, or empty."""
    for seed in range(1 if eight else 2):
        shape = Shape(4, 2, dim, 16, (1200, 0, 255, 257, 64), 1, False, True, 1, eight)
        check_step(shape, seed, splits=splits, form=form)


@pytest.mark.parametrize("eight", [False, True])
@pytest.mark.parametrize("form", attention.FORMS, ids=str)
def test_every_form_of_a_block_over_short_rows(form: DecodeForm, eight: bool) -> None:
    """The new position is the first or the last of a chunk, or in the middle of one."""
    for seed, block in enumerate(BLOCKS[2 * eight :: 3]):
        lengths = (90, 31, 0, 1, 16, 15, 32, 63 + seed, 64, 127, 128, 200)
        check_step(Shape(3, 1, 128, block, lengths, 1, False, True, 1, eight), seed, form=form, early=seed > 0)


@pytest.mark.parametrize("eight", [False, True])
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize(("blocks", "uneven"), [(2, False), (5, True), (9, False), (16, True)])
@pytest.mark.parametrize("form", [LONG, LONG_PAIR])
def test_a_long_row_is_interleaved_over_blocks_that_post_their_sums(
    form: DecodeForm, blocks: int, uneven: bool, dim: int, eight: bool
) -> None:
    """Some blocks have a unit more; one row is shared by fewer blocks than there are, and one has a single block."""
    for seed, lengths in enumerate(((2900,), (700 + blocks, 0), (513,), (300,))):
        shape = Shape(4, 2, dim, 16, lengths, 1, False, True, 1, eight)
        check_step(shape, seed, form=form._replace(blocks=blocks, uneven=uneven), early=seed > 0)


@pytest.mark.parametrize(("form", "blocks"), [(LONG, 3), (LONG, 12), (LONG_PAIR, 7)])
@pytest.mark.parametrize("heads", [1, 3, 5, 8, 11, 16])
def test_any_number_of_heads_over_one_is_posted(heads: int, form: DecodeForm, blocks: int) -> None:
    """A thread may have columns of several queries, several threads the same columns of different parts, and some
    threads nothing to do."""
    shape = Shape(heads, 1, 128, 16, (6200,), 1, False, True, 1)
    check_step(shape, heads, form=form._replace(blocks=blocks, uneven=heads % 2 > 0))


@pytest.mark.parametrize("length", [5248, 5249, 5375, 5376, 5377])
@pytest.mark.parametrize("form", [LONG, LONG_PAIR])
def test_where_a_unit_ends_so_does_no_row(form: DecodeForm, length: int) -> None:
    """The new position begins a unit or a chunk, or ends a unit; some blocks have two units more than others."""
    check_step(Shape(2, 1, 64, 1, (length,), 1, False, True, 1), length, form=form._replace(blocks=5, uneven=True))


@pytest.mark.parametrize("form", [LONG, LONG_PAIR])
def test_what_was_posted_is_gone_for_the_next_launch(form: DecodeForm) -> None:
    """Otherwise a block would find sums of the previous launch."""
    shapes = [Shape(4, 2, 128, 16, lengths, 1, False, True, 1) for lengths in ((1400,), (900, 2000), (1300,))]
    posted = torch.full((12 * 2 * 132,), -1, dtype=torch.int32)  # 8 blocks, and one more for each of four groups
    for seed, shape in enumerate(shapes):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(attention, "exchange_buffer", lambda *given: posted)
            check_step(shape, seed, form=form._replace(blocks=8))
        assert bool((posted == -1).all())


def test_sums_of_one_cache_are_posted_where_those_of_another_are_not() -> None:
    first, second = (torch.zeros(2, 3, 16, 2, 64, dtype=torch.bfloat16) for _ in range(2))
    buffers = [exchange_buffer(owner, 1000) for owner in (first, second, first)]
    assert buffers[0] is buffers[2] is not buffers[1] and all(bool((buffer == -1).all()) for buffer in buffers)


def test_a_row_that_no_table_has_room_for_posts_nothing() -> None:
    shape = Shape(4, 2, 64, 16, (1400, 900), 1, False, True, 0)
    qkv, heads, cache_, tables, positions, width = step_call(shape, 1, "cpu")
    positions[0] = -1
    got = attention.paged_step(qkv, heads, cache_, tables, positions, width, form=LONG._replace(blocks=10))
    assert not got[0].any() and got[1].isfinite().all() and got[1].any()


@pytest.mark.parametrize("form", [PAIR, WIDE, SMALL])
def test_more_heads_over_one_than_a_block_asks_for_at_first(form: DecodeForm) -> None:
    for heads in (8, 16):
        check_step(Shape(heads, 1, 64, 16, (90, 3), 1, True, True, 1), 1, form=form)


@pytest.mark.parametrize("eight", [False, True])
@pytest.mark.parametrize(("heads", "dim"), [(16, 128), (9, 64), (8, 64), (7, 128), (3, 64)])
def test_any_number_of_heads_over_one(heads: int, dim: int, eight: bool) -> None:
    """Up to 8 heads are the columns of a product; more are its rows."""
    shape = Shape(heads, 1, dim, 16, (600, 17), 1, False, True, 1, eight)
    check_step(shape, heads, splits=2)


def test_a_crowd_of_blocks_reads_one_chunk_after_the_other() -> None:
    check_step(Shape(16, 8, 128, 16, (260, 140, *range(6)), 1, False, True, 0), 1, splits=1, form=ALONE)


@pytest.mark.parametrize(("heads", "dim"), [(8, 128), (1, 64)])
def test_more_shares_than_are_read_at_once_are_put_together(heads: int, dim: int) -> None:
    check_step(Shape(heads, 1, dim, 16, (2400,), 1, False, True, 1), 1, splits=64)


@pytest.mark.parametrize(("block", "positions"), [(16, 1100), (1, 1100)])
def test_shares_find_their_positions_in_a_table_of_any_size(block: int, positions: int) -> None:
    """A block loads a table that it has room for at once, and looks up entries of a larger one when it needs them."""
    check_step(Shape(2, 1, 64, block, (positions, 700), 1, False, True, 1), 1, splits=2, form=ALONE)


@pytest.mark.parametrize("eight", [False, True])
@pytest.mark.parametrize(("form", "helpers"), [(SMALL, 6), (NARROW, 2), (SMALL, 1)])
def test_long_rows_among_many_short_ones_are_shared(form: DecodeForm, helpers: int, eight: bool) -> None:
    """One of the first 32 rows is long, and three of the others, which are too many for some numbers of helpers; some
    rows are empty."""
    lengths = [*range(20), 1300, *range(11), 700, 3, 513, 512, 900, 0, 40, 17]
    shape = Shape(2, 1, 64, 16, tuple(lengths), 1, helpers > 2, True, 1, eight)
    call = step_call(shape, helpers, "cpu")
    call[4][5] = -1
    other = call[2].clone()
    got = attention.paged_step(*call[:2], other, *call[3:], form=form, helpers=helpers)
    assert not got[5].any()
    rows = [row for row in range(len(lengths)) if row != 5]
    qkv, heads, cache_, tables, positions, width = call
    few = Heads(*heads[:2], *(t[rows] if len(t) > 1 else t for t in heads[2:4]), *heads[4:])
    expected = exact_step(qkv[rows], few, cache_, tables[rows], positions[rows], width)
    assert error_of(got[rows], expected) < RELATIVE_ERROR
    assert cache_error(other, cache_) < shape.cache_error


def test_a_position_that_no_table_has_room_for_is_not_written_and_gives_zeros() -> None:
    shape = Shape(4, 2, 128, 16, (20, 5), 1, False, True, 0)
    qkv, heads, cache_, tables, positions, width = step_call(shape, 1, "cpu")
    for outside in (-1, 32):
        before = cache_.clone()
        lost = positions.clone()
        lost[0] = outside
        got = attention.paged_step(qkv, heads, cache_, tables, lost, width)
        assert not got[0].any() and got[1].isfinite().all() and got[1].any()
        changed = (cache_.isnan() != before.isnan()).flatten(3).any(3)[0].sum()
        assert changed == int(outside == -1)  # the other row's, once


@pytest.mark.parametrize("eight", [False, True])
@pytest.mark.parametrize("queries", [64, 128])
@pytest.mark.parametrize("seed", range(6))
def test_prefills_of_drawn_shapes(queries: int, seed: int, eight: bool) -> None:
    shape = draw(random.Random(100 + seed), most_rows=2, most_length=150, most_queries=60)
    shape = replace(shape, kv_heads=1, heads=shape.heads // shape.kv_heads, eight=eight)
    call = prefill_call(shape, seed, "cpu")
    expected = exact_attention(*call)
    got = attention.paged_attention(*call, form=PrefillForm(queries))
    assert error_of(got, expected) < RELATIVE_ERROR, (shape, seed)


def test_queries_that_see_nothing_get_zeros() -> None:
    shape = Shape(4, 2, 128, 16, (3, 3), 5, True, False, 0)
    q, cache_, tables, positions, width = prefill_call(shape, 1, "cpu")
    positions[0] = -1
    positions[1, 2] = -1
    got = attention.paged_attention(q, cache_, tables, positions, width)
    assert not got[0].any() and not got[1, 2].any() and got[1, 3].any() and got.isfinite().all()
