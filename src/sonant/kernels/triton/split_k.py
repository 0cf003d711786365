"""Split-K: programs that share the depth of a product each store a partial sum; the last to arrive adds them in order.

So the result does not depend on which program was last, and no second kernel is needed.
"""

from __future__ import annotations

from functools import cache, lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from sonant.kernels.gpu import is_beside_steps

_AT_ONCE = 4096  # counters that a weight gets at once: enough for all numbers of groups in batches of all sizes
_APART = 4  # so that every set begins at a multiple of 16 bytes, as all memory of torch's does for a compiler


@triton.jit
def arrived_last(counter, SPLITS: tl.constexpr):
    """Whether this program is the last of its group; if so, the counter is reset for the next launch."""
    tl.debug_barrier()  # all of the program's threads have stored before it counts itself
    last = tl.atomic_add(counter, 1) == SPLITS - 1
    if last:
        tl.store(counter, 0)
    return last


@triton.jit
def sum_partials(partials, cell, SPLITS: tl.constexpr, CELLS: tl.constexpr):
    """The sum of all partial sums, in order. They are read past the L1 cache, which may hold stale values."""
    total = tl.load(partials + cell, cache_modifier=".cg")
    for split in tl.static_range(1, SPLITS):
        total += tl.load(partials + split * CELLS + cell, cache_modifier=".cg")
    return total


class Counters:
    """A weight's counters: a set for each number of groups, cut from memory that was cleared for many sets at once."""

    def __init__(self) -> None:
        self._sets: dict[int, Tensor] = {}
        self._cleared: list[Tensor] = []  # what is left of that memory, the newest last

    def of(self, groups: int, device: torch.device) -> Tensor:
        if groups not in self._sets:
            if not self._cleared or len(self._cleared[-1]) < groups:
                self._cleared.append(filled(max(groups, _AT_ONCE), 0, device))
            left = self._cleared[-1]
            self._sets[groups], self._cleared[-1] = left[:groups], left[-(-groups // _APART) * _APART :]
        return self._sets[groups]


def counters(weight: Tensor, groups: int, splits: int) -> Tensor:
    """A counter for each group of programs, which every product leaves at zero.

    A set serves one weight and number of groups, since an engine has one launch with a weight at a time, and two
    engines have two weights. It is freed with the weight, never earlier: graphs hold its address. Its key is the
    tensor object, not its address, which another tensor may have later: pass the one that the layer keeps, or each
    call gets a set of its own. Launches beside an engine's steps get a set for each call, too.
    """
    if splits == 1:
        return _unused(weight.device)
    if is_beside_steps():
        return filled(groups, 0, weight.device)
    kept = _sets_by_weight()
    sets: Counters | None = kept.get(weight)
    if sets is None:
        sets = kept[weight] = Counters()
    return sets.of(groups, weight.device)


def filled(count: int, value: int, device: torch.device) -> Tensor:
    """Filled on another stream during a capture: else only that graph would fill it, in memory that others use, too."""
    if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
        return torch.full((count,), value, dtype=torch.int32, device=device)
    aside = torch.cuda.Stream(device)
    with torch.cuda.stream(aside):
        made = torch.full((count,), value, dtype=torch.int32, device=device)
    aside.synchronize()
    return made


@cache
def _sets_by_weight() -> WeakTensorKeyDictionary:
    return WeakTensorKeyDictionary()


@lru_cache(maxsize=16)
def _unused(device: torch.device) -> Tensor:
    """An argument for kernels that do not count."""
    return torch.zeros(1, dtype=torch.int32, device=device)


def workspace(on: Tensor, groups: int, splits: int, cells: int) -> Tensor:
    """Memory for the partial sums of all groups; empty if the depth is not split."""
    if splits == 1:
        return _nothing(on.device)
    return torch.empty(groups * splits * cells, dtype=torch.float32, device=on.device)


@lru_cache(maxsize=16)
def _nothing(device: torch.device) -> Tensor:
    return torch.empty(0, dtype=torch.float32, device=device)
