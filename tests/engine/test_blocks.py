"""Blocks: each is either free or in use, and a prefix is found again while it lasts."""

from __future__ import annotations

import numpy as np

from sonant.engine.blocks import BlockPool


def keys(*values: int) -> np.ndarray:
    return np.array(values, np.int32)[:, None]


def test_a_prefix_is_reused_only_after_it_was_written() -> None:
    pool = BlockPool(10, 2)
    prompt = keys(1, 2, 3, 4, 5)
    first = pool.allocate(prompt, 4, 8)
    assert first is not None and first.reused_tokens == 0
    unwritten = pool.allocate(prompt, 4, 5)
    assert unwritten is not None and unwritten.reused_tokens == 0
    pool.publish(first, 2)
    half = pool.allocate(prompt, 4, 5)
    assert half is not None and half.reused_tokens == 2 and half.blocks[0] == first.blocks[0]


def test_another_beginning_shares_nothing() -> None:
    pool = BlockPool(20, 2)
    first = pool.allocate(keys(1, 2, 3, 4), 4, 4)
    assert first is not None
    pool.publish(first, 4)
    other = pool.allocate(keys(9, 2, 3, 4), 4, 4)
    assert other is not None and other.reused_tokens == 0
    same_start = pool.allocate(keys(1, 2, 9, 9), 4, 4)
    assert same_start is not None and same_start.reused_tokens == 2


def test_shared_blocks_outlive_their_first_owner_and_are_freed_once() -> None:
    pool = BlockPool(6, 2)
    first = pool.allocate(keys(1, 2, 3), 2, 4)
    assert first is not None
    pool.publish(first, 2)
    second = pool.allocate(keys(1, 2, 7), 2, 4)
    assert second is not None and second.reused_tokens == 2
    pool.release(first)
    assert second.blocks[0] not in pool.free
    pool.release(second)
    assert len(pool.free) == pool.total == 5
    assert 0 not in pool.free


def test_when_memory_is_short_the_oldest_prefix_goes_first() -> None:
    pool = BlockPool(4, 1)
    for value in (1, 2, 3):
        allocation = pool.allocate(keys(value, 0), 1, 1)
        assert allocation is not None
        pool.publish(allocation, 1)
        pool.release(allocation)
    taken = pool.allocate(keys(8, 8), 0, 1)
    assert taken is not None
    reused = [pool.allocate(keys(v, 0), 1, 1) for v in (3, 2, 1)]
    assert [a.reused_tokens if a else None for a in reused] == [1, 1, None]


def test_no_room_takes_nothing() -> None:
    pool = BlockPool(4, 1)
    first = pool.allocate(keys(1, 2), 1, 2)
    assert first is not None
    pool.publish(first, 1)
    pool.release(first)
    assert pool.allocate(keys(1, 2), 1, 4) is None
    assert len(pool.free) == 3
