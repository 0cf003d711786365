"""Split-K: programs that share the depth of a product each leave a partial sum; the last to arrive adds them in order.

So the result does not depend on who that was, and no second kernel is needed.
"""

from __future__ import annotations

from functools import cache, lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary


@triton.jit
def arrived_last(counter, SPLITS: tl.constexpr):
    """Whether this program is the last of its group; if so, the counter is ready for the next launch."""
    tl.debug_barrier()  # all of the program's threads have stored before it says so
    last = tl.atomic_add(counter, 1) == SPLITS - 1
    if last:
        tl.store(counter, 0)
    return last


@triton.jit
def sum_partials(partials, cell, SPLITS: tl.constexpr, CELLS: tl.constexpr):
    """Read past the first-level cache, which may hold what was there before."""
    total = tl.load(partials + cell, cache_modifier=".cg")
    for split in tl.static_range(1, SPLITS):
        total += tl.load(partials + split * CELLS + cell, cache_modifier=".cg")
    return total


def counters(weight: Tensor, groups: int, splits: int) -> Tensor:
    """A counter for each group of programs, which every product leaves at zero.

    A set serves one weight and number of groups, since one engine uses a weight once at a time and two engines have
    two. It is made by the run that comes before a capture and given up with the weight, never earlier: graphs hold its
    address. The weight is the tensor itself, not its address, which another may have later: hand over what the layer
    keeps, or there is a set for each call.
    """
    if splits == 1:
        return _unused(weight.device)
    sets: dict[int, Tensor] = _sets_by_weight().setdefault(weight, {})
    if groups not in sets:
        sets[groups] = torch.zeros(groups, dtype=torch.int32, device=weight.device)
    return sets[groups]


@cache
def _sets_by_weight() -> WeakTensorKeyDictionary:
    return WeakTensorKeyDictionary()


@lru_cache(maxsize=16)
def _unused(device: torch.device) -> Tensor:
    """What a kernel is given that does not count."""
    return torch.zeros(1, dtype=torch.int32, device=device)


def workspace(on: Tensor, groups: int, splits: int, cells: int) -> Tensor:
    """For the partial sums of all groups; nothing where the depth is not split."""
    return torch.empty(groups * splits * cells if splits > 1 else 0, dtype=torch.float32, device=on.device)
