"""The end of a step that draws a frame of codes: what is kept of it, and what the next step finds."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class FrameCounters(NamedTuple):
    """Of each row in the batch, [B] int32, as they were before the step."""

    position: Tensor
    frame: Tensor
    trailing_length: Tensor


class FrameMemory(NamedTuple):
    """Of all rows, [N, …]; all but `trailing` are written at those of the batch."""

    codes: Tensor  # [N, ring, groups] int32
    input: Tensor  # [N, hidden]
    counters: Tensor  # [N, 3] int32: position, frame, status
    trailing: Tensor  # [N, tokens, hidden]: what text is still to be said, by frame


class FrameTables(NamedTuple):
    """What each code of each group adds to the next input."""

    table: Tensor  # [all groups' codes, hidden]
    offsets: Tensor  # [groups] int64: where each group begins
    pad: Tensor  # [hidden]: in the place of text where there is none left


def frame_step(
    first: Tensor, rest: Tensor, status: Tensor, own: FrameCounters, rows: Tensor, memory: FrameMemory,
    tables: FrameTables, running: int,
) -> Tensor:  # fmt: skip
    """Keep codes first [B] and rest [B, groups - 1] int64 at `rows` [B], make the next input of them and of the text,
    and move the counters of those on whose status [B] is `running`. → records [B, 1 + groups] int32: status, codes."""
    codes = torch.cat([first[:, None], rest], 1)
    record = torch.cat([status[:, None], codes.int()], 1)
    memory.codes[rows, own.frame % memory.codes.shape[1]] = record[:, 1:]
    text = memory.trailing[rows, own.frame.clamp(max=memory.trailing.shape[1] - 1)]
    has_text = (own.frame < own.trailing_length)[:, None]
    spoken = F.embedding(codes + tables.offsets, tables.table).sum(-2)
    memory.input[rows] = spoken + torch.where(has_text, text, tables.pad)
    going = (status == running).int()
    memory.counters.index_copy_(0, rows, torch.stack([own.position + going, own.frame + going, status], 1))
    return record
