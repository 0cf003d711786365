"""Rows of a table in host memory, and the clocks of passes and waits."""

from __future__ import annotations

import time

import pytest
import torch

from sonant.kernels.host_weights import host_rows, pass_begins, pass_ends, wait_begins, wait_ends

pytest.importorskip("triton")


@pytest.mark.parametrize("width", [64, 1030])
@pytest.mark.parametrize("ids", [torch.tensor([[3, 0], [6, 6]]), torch.tensor([5], dtype=torch.int32)])
def test_the_kernel_fetches_the_rows_that_are_asked_for(width: int, ids: torch.Tensor) -> None:
    from sonant.kernels.triton import host_weights

    table = torch.randn(7, width, generator=torch.Generator().manual_seed(1)).bfloat16()
    expected = host_rows(table, ids)
    assert torch.equal(expected, table[ids.long()])
    assert torch.equal(host_weights.host_rows(table, ids), expected)


def test_a_clock_counts_time_and_amounts() -> None:
    clock = torch.zeros(3, dtype=torch.int64)
    for amount in (2, 5):
        pass_begins(clock)
        time.sleep(0.002)
        pass_ends(clock, amount)
    assert clock[1] >= 4_000_000 and clock[2] == 7
    waits = torch.zeros(3, dtype=torch.int64)
    wait_begins(waits)
    time.sleep(0.002)
    wait_ends(waits)
    assert waits[1] >= 2_000_000 and waits[2] == 0
