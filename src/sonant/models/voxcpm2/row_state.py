"""The per-row state of VoxCPM2: what the host sets once, and what the steps keep on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from sonant.config import FrameSizes
from sonant.models.memory import Memory
from sonant.models.spec import Field
from sonant.models.status import Status
from sonant.models.voxcpm2.config import VoxCPM2Config

COUNTED = ("position", "frame", "text_input", "status")
"""The counters that every step writes, side by side in a row's line; `text_input` is 1 while the next input is a text
token, and not a patch."""


def state_fields(
    config: VoxCPM2Config, sizes: FrameSizes, dtype: torch.dtype, tails: int, codec_dtype: torch.dtype
) -> tuple[Field, ...]:
    patch = (config.patch_size, config.feat_dim)
    return (
        *(Field(name, (), torch.int32) for name in (*COUNTED, "codec_frame")),
        Field("input", (config.lm.hidden_size,), dtype),
        Field("before", patch, torch.float32),  # the patch before the next one
        Field("patches", (sizes.ring, *patch), torch.float32),
        Field("codec_tails", (tails,), codec_dtype),
    )


def settle(memory: Memory) -> None:
    """Set what must not be arbitrary before a row's first request. The scratch row never gets one."""
    rows = memory.rows
    for name in ("position", "frame", "text_input", "codec_frame", "input", "before", "patches", "codec_tails"):
        rows[name].zero_()
    rows["status"].fill_(Status.STOPPED)  # frozen until a prefill readies the row


def start_rows(memory: Memory, rows: Tensor, lengths: Tensor, inputs: Tensor, audio: Tensor, before: Tensor) -> None:
    """Ready rows [B] to decode from their prompts' last positions; the scratch row may be among them.

    `inputs` [B, hidden] are the vectors at these positions, `audio` [B] whether each embeds a patch, and `before` that
    patch, or zeros.
    """
    r = memory.rows
    r["input"][rows] = inputs
    r["before"][rows] = before
    r["position"][rows] = lengths.int() - 1
    r["text_input"][rows] = (~audio).int()
    r["status"][rows] = torch.where(rows == memory.scratch_row, int(Status.STOPPED), int(Status.RUNNING)).int()
    for name in ("frame", "codec_frame", "codec_tails"):
        r[name].index_fill_(0, rows, 0)
