"""The per-row state of Higgs Audio V2: what the host sets once, and what the steps keep on the device.

A row keeps its last rows of codes in a ring, delayed as they were drawn: RAS looks back at them, a frame is a diagonal
of them, and the codec takes its windows from them. Row 0 is the one of all BOS; those of the prompt before it have
negative numbers, and if the prompt has too few the others' codes are -1.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sonant.config import FrameSizes
from sonant.kernels.reference import SamplingParams
from sonant.models.higgs_audio_v2.config import CODEBOOKS
from sonant.models.higgs_audio_v2.knobs import MOST_RAS_ROWS
from sonant.models.memory import Memory
from sonant.models.spec import Field
from sonant.models.status import Status

COUNTED = ("position", "drawn", "ending", "status")
"""The counters that every step writes, side by side in a row's line: the position of the last row of codes, its number,
for how many rows the stream has been ending, and the status."""

BEFORE = MOST_RAS_ROWS - 1  # rows of the prompt that are kept
_SPARE = 2  # steps that may be launched while the codec reads


def state_fields(sizes: FrameSizes, context_frames: int) -> tuple[Field, ...]:
    """The ring holds frames that wait for the codec, and those before them that it reads again."""
    ring = max(sizes.ring + context_frames + CODEBOOKS + _SPARE, MOST_RAS_ROWS + _SPARE)
    return (
        *(Field(name, (), torch.int32) for name in (*COUNTED, "codec_frame")),
        Field("delayed", (ring, CODEBOOKS), torch.int32),
    )


def sampling_params(numbers: Mapping[str, Tensor]) -> SamplingParams:
    return SamplingParams(**{name: numbers[name] for name in ("greedy", "temperature", "top_k", "top_p")})


def settle(memory: Memory) -> None:
    """Set what must not be arbitrary before a row's first request. The scratch row never gets one."""
    rows = memory.rows
    for name in ("position", "drawn", "ending", "codec_frame", "delayed"):
        rows[name].zero_()
    rows["status"].fill_(Status.STOPPED)  # frozen until a prefill readies the row
    rows["temperature"].fill_(1)


def start_rows(memory: Memory, rows: Tensor, lengths: Tensor, opening: Tensor) -> None:
    """Ready rows [B] to decode from their prompts' last positions; the scratch row may be among them.

    opening [B, MOST_RAS_ROWS, codebooks]: the last rows of codes, of which the one of all BOS is the latest.
    """
    r = memory.rows
    r["position"][rows] = lengths.int() - 1
    r["status"][rows] = torch.where(rows == memory.scratch_row, int(Status.STOPPED), int(Status.RUNNING)).int()
    for name in ("drawn", "ending", "codec_frame"):
        r[name].index_fill_(0, rows, 0)
    r["delayed"][:, :MOST_RAS_ROWS].index_copy_(0, rows, opening)


def window_places(frames: int, context_frames: int, codebook: Tensor) -> Tensor:
    """Where in the ring the codes of a chunk and of its context on either side lie: [frames, codebooks], to which the
    number of the chunk's first frame has to be added, modulo the ring's length.

    Code k of frame n is in row n + 1 + k, and row r is at place r + `BEFORE`.
    """
    number = torch.arange(-context_frames, frames + context_frames, device=codebook.device)
    return number[:, None] + 1 + codebook + BEFORE
