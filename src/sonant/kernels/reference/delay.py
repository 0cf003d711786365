"""A step of a delay pattern: from drawn codes to a row of the pattern, a frame, and the counters."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Statuses(NamedTuple):
    """Values of a record's first word; `priming`: the row completes no frame yet."""

    running: int
    stopped: int
    capped: int
    priming: int


class DelayPattern(NamedTuple):
    """Row n holds code k of frame n - 1 - k; row 0 is all BOS.

    In the first rows the codebooks whose frames have not begun are BOS. When any codebook draws EOS the stream begins
    to end: in the rows that follow EOS is forced in the first codebook, then in the first two, and so on. A row that is
    EOS throughout is the end, and completes no frame.
    """

    bos: int  # ids from this one on are no codes
    eos: int
    before: int  # rows before row 0 that a ring keeps: row n lies at (n + before) modulo its length
    statuses: Statuses


class RowCounters(NamedTuple):
    """The counters of each row in the batch before the step, [B] int32 each."""

    position: Tensor
    drawn: Tensor  # the number of its last row of codes
    ending: Tensor  # for how many rows the stream has been ending; 0: it goes on
    status: Tensor
    frame_limit: Tensor


def delay_step(
    drawn: Tensor, own: RowCounters, rows: Tensor, ring: Tensor, counters: Tensor, pattern: DelayPattern
) -> Tensor:
    """Force BOS and EOS on drawn [B, K], store the row in ring [N, length, K] and advance counters [N, 4] (position,
    drawn, ending, status), both at `rows` [B] → records [B, 1 + K] int32: status, and the frame that is completed.

    A row whose status is not `running` stays as it is; what is written into its ring lies beyond all that is read.
    """
    running, stopped, capped, priming = pattern.statuses
    count = drawn.shape[1]
    codebook = torch.arange(count, device=drawn.device)
    codes = torch.where(codebook > own.drawn[:, None], pattern.bos, drawn)
    codes = torch.where(codebook < own.ending[:, None], pattern.eos, codes).int()
    is_eos = codes == pattern.eos
    is_capped = own.drawn - (count - 1) >= own.frame_limit
    status = own.status.masked_fill(is_capped & (own.status == running), capped)
    status = status.masked_fill(is_eos.all(1) & (own.status == running), stopped)
    told = status.masked_fill((status == running) & (own.drawn < count - 1), priming)
    length = ring.shape[1]
    places = (own.drawn[:, None] + codebook[:-1] - (count - 2) + pattern.before) % length
    frame = torch.cat([ring[rows[:, None], places, codebook[:-1]], codes[:, -1:]], 1).clamp(max=pattern.bos - 1)
    ring[rows, (own.drawn + 1 + pattern.before) % length] = codes
    going = (status == running).int()
    ends = ((own.ending > 0) | is_eos.any(1)).int()
    moved = (own.position + going, own.drawn + going, own.ending + going * ends, status)
    counters.index_copy_(0, rows, torch.stack(moved, 1))
    return torch.cat([told[:, None], frame], 1)
