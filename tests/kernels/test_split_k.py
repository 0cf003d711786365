"""The counters of a split product live as long as its weight, and are shared with no other weight."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.against import DEVICE, close, kernel, random
from sonant.kernels import reference
from sonant.kernels.gpu import beside_steps
from sonant.kernels.tuning import Tile

pytest.importorskip("triton")
from sonant.kernels.triton import split_k

SPLIT = Tile(0, 16, 32, stages=2, splits=3)


def test_a_weight_keeps_its_counters() -> None:
    """A CUDA graph contains their address."""
    weight = torch.nn.Parameter(torch.zeros(4, 4, device=DEVICE))
    mine = split_k.counters(weight, 6, 2)
    address = mine.data_ptr()
    assert mine.shape == (6,) and mine.dtype == torch.int32 and not mine.any()
    del mine
    gc.collect()
    others = [split_k.counters(torch.zeros(4, 4, device=DEVICE), 6, 2) for _ in range(3)]
    assert split_k.counters(weight, 6, 4).data_ptr() == address
    assert address not in [other.data_ptr() for other in others]


def test_who_launches_beside_steps_has_counters_of_their_own() -> None:
    """With the same counters, two simultaneous products would count each other's programs."""
    weight = torch.zeros(4, 4, device=DEVICE)
    of_steps = split_k.counters(weight, 6, 2)
    with beside_steps():
        aside = [split_k.counters(weight, 6, 2) for _ in range(2)]
    assert len({one.data_ptr() for one in (of_steps, *aside)}) == 3
    assert all(one.shape == (6,) and not one.any() for one in aside)
    assert split_k.counters(weight, 6, 2).data_ptr() == of_steps.data_ptr()


def test_two_weights_and_two_numbers_of_groups_share_nothing() -> None:
    weights = [torch.zeros(4, 4, device=DEVICE) for _ in range(2)]
    sets = [split_k.counters(weight, groups, 2) for weight in weights for groups in (3, 5)]
    assert len({one.data_ptr() for one in sets}) == 4
    assert [len(one) for one in sets] == [3, 5, 3, 5]


def test_counters_go_with_their_weight_and_another_at_its_address_gets_fresh_ones() -> None:
    memory = np.zeros(16, np.float32)

    def weight_there() -> Tensor:
        return torch.from_numpy(memory)

    first = weight_there()
    address = first.data_ptr()
    counters = split_k.counters(first, 7, 2)
    counters.fill_(9)  # as a product that was killed half-way would leave them
    gone = weakref.ref(counters)
    del counters
    assert gone() is not None
    del first
    gc.collect()
    assert gone() is None
    second = weight_there()
    assert second.data_ptr() == address
    assert not split_k.counters(second, 7, 2).any()


def test_a_depth_that_is_not_split_needs_none_of_its_own() -> None:
    one, other = (split_k.counters(torch.zeros(4, 4, device=DEVICE), groups, 1) for groups in (3, 500))
    assert one is other
    assert split_k.workspace(one, 500, 1, 1 << 20).numel() == 0


def test_products_and_convolutions_leave_their_counters_at_zero() -> None:
    x, weight = random(8, 1, 96), random(32, 96, seed=1) / 96**0.5
    close(kernel("linear")(x, weight, tile=SPLIT), reference.linear(x, weight), torch.float32, roundings=3)
    counters = split_k.counters(weight, 2, SPLIT.splits)
    assert not counters.any()
    counters.fill_(100)  # no program finds itself the last then: the product uses these counters and no others
    kernel("linear")(x, weight, tile=SPLIT)
    assert (counters == 100 + SPLIT.splits).all()

    wide, tile = random(2, 20, 24), Tile(16, 16, 16, stages=2, splits=2)
    taps, bias = random(20, 3, 24, seed=2).permute(0, 2, 1), random(20, seed=3)
    kernel("causal_conv")(wide, taps, bias, None, tile=tile)
    assert not split_k.counters(taps, 6, tile.splits).any()


def test_sets_of_one_weight_never_overlap_however_many_there_are() -> None:
    weight = torch.zeros(4, 4, device=DEVICE)
    sizes = [1, 3, 700, 4096, 2, 5000, 1500, 17]
    sets = {groups: split_k.counters(weight, groups, 2) for groups in sizes}
    for number, groups in enumerate(sizes, 1):
        assert not sets[groups].any() and sets[groups].data_ptr() % 16 == 0
        sets[groups].fill_(number)
    for number, groups in enumerate(sizes, 1):
        assert len(sets[groups]) == groups and (sets[groups] == number).all()
        assert split_k.counters(weight, groups, 7) is sets[groups]
