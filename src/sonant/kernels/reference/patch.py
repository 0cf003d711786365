"""The end of a step that makes patches: whether a row goes on, and the state that its next step finds."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class PatchStatuses(NamedTuple):
    """Values of a record's first word; `last`: the row ends with this patch, which is speech too."""

    running: int
    capped: int
    last: int


class PatchCounters(NamedTuple):
    """The counters of each row in the batch before the step, [B] int32 each."""

    position: Tensor
    frame: Tensor  # patches made
    min_len: Tensor
    frame_limit: Tensor
    status: Tensor


class PatchMemory(NamedTuple):
    """The state of all rows, [N, …], written at the rows of the batch."""

    patches: Tensor  # [N, ring, T, C] float32
    before: Tensor  # [N, T, C] float32
    input: Tensor  # [N, hidden]
    counters: Tensor  # [N, 4] int32: position, frame, whether the next input is text, status


def patch_step(
    patch: Tensor,
    embedded: Tensor,
    stop: Tensor,
    own: PatchCounters,
    rows: Tensor,
    memory: PatchMemory,
    statuses: PatchStatuses,
) -> Tensor:
    """Store patch [B, T, C] float32 and its embedding [B, hidden] at `rows` [B] and advance the counters. A row ends
    if the second of `stop` [B, 2] is the larger and more than `min_len` patches were made before → records
    [B, 1 + T · C] int32: status, and the patch bit by bit.

    A row whose status is not `running` stays as it is; the patch that is written for it is never read.
    """
    running, capped, last = statuses
    stops = (stop.argmax(-1) == 1) & (own.frame > own.min_len)
    was_running = own.status == running
    status = own.status.masked_fill(stops & was_running, last)
    status = status.masked_fill((own.frame >= own.frame_limit) & was_running, capped)
    memory.patches[rows, own.frame % memory.patches.shape[1]] = patch
    memory.before[rows] = patch
    memory.input[rows] = embedded
    going = (status == running).int()
    made = going + (was_running & (status == last)).int()
    moved = (own.position + going, own.frame + made, torch.zeros_like(going), status)
    memory.counters.index_copy_(0, rows, torch.stack(moved, 1))
    return torch.cat([status[:, None], patch.flatten(1).contiguous().view(torch.int32)], 1)
