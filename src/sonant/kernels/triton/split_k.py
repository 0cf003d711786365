"""Sums over programs that split a product's depth: each leaves its part, the last to arrive adds them in their order.

So the result does not depend on who that was, and no second kernel is needed.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def arrive_last(counter, PARTS: tl.constexpr):
    """Whether this program is the last of its group; if so, the counter is ready for the next launch."""
    tl.debug_barrier()  # all of the program's threads have stored before it says so
    last = tl.atomic_add(counter, 1) == PARTS - 1
    if last:
        tl.store(counter, 0)
    return last


@triton.jit
def sum_of_parts(partial, cell, PARTS: tl.constexpr, CELLS: tl.constexpr):
    """Read past the first-level cache, which may hold what was there before."""
    total = tl.load(partial + cell, cache_modifier=".cg")
    for part in tl.static_range(1, PARTS):
        total += tl.load(partial + part * CELLS + cell, cache_modifier=".cg")
    return total


@cache
def _counters(device: torch.device, weight: int, groups: int) -> Tensor:
    """Counters that every product leaves at zero; a set for each weight (by address), since one engine uses a weight
    once at a time and two engines have two. Made by the run that comes before a capture, and never given up: graphs
    hold their addresses."""
    return torch.zeros(groups, dtype=torch.int32, device=device)


def arrivals(device: torch.device, weight: int, groups: int, splits: int) -> Tensor:
    return _counters(device, weight, groups) if splits > 1 else _counters(device, 0, 1)


def room(on: Tensor, groups: int, splits: int, cells: int) -> Tensor:
    """For the parts of all groups; nothing where there is one part."""
    return torch.empty(groups * splits * cells if splits > 1 else 0, dtype=torch.float32, device=on.device)
