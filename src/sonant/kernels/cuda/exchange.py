"""Buffers in which blocks of a launch post partial results for one of them, as in `source/exchange.cuh`. They are empty
between launches.

One buffer serves all launches over a cache, which come one after the other; launches beside an engine's steps have one
for each call. It is freed with the cache, never earlier: graphs hold its address.
"""

from __future__ import annotations

from functools import cache

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from sonant.kernels.gpu import is_beside_steps

_EMPTY = -1  # as grid.cuh has it: all bits


def exchange_buffer(owner: Tensor, words: int) -> Tensor:
    """The owner's buffer; its number of words must always be the same."""
    from sonant.kernels.triton.split_k import filled

    if is_beside_steps():
        return filled(words, _EMPTY, owner.device)
    kept = _buffers()
    buffer: Tensor | None = kept.get(owner)
    if buffer is None:
        buffer = kept[owner] = filled(words, _EMPTY, owner.device)
    return buffer


@cache
def _buffers() -> WeakTensorKeyDictionary:
    return WeakTensorKeyDictionary()
