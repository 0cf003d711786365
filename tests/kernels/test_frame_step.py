"""The end of a step that draws codes: the reference and the kernel against rules written out in plain Python."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.against import DEVICE, DTYPES, close, kernel, random
from sonant.kernels import reference
from sonant.kernels.reference import FrameCounters, FrameMemory, FrameTables

RUNNING, STOPPED = 1, 2
RING, GROUPS, CODES, TOKENS, WIDTH, ALL = 5, 6, 9, 4, 600, 11
ROWS = [3, 0, 7, 10]
STATUSES, FRAMES, TEXTS = [RUNNING, RUNNING, STOPPED, RUNNING], [0, 7, 2, 3], [2, 3, 9, 4]


def run(op: Any, dtype: torch.dtype) -> tuple[Tensor, FrameMemory, Tensor, FrameTables, Tensor]:
    lines = torch.full((ALL, 9), -7, dtype=torch.int32, device=DEVICE)
    rows = torch.tensor(ROWS, device=DEVICE)
    for row, frame, text in zip(ROWS, FRAMES, TEXTS, strict=True):
        lines[row, 1:3] = torch.tensor([20 + row, frame], dtype=torch.int32)
        lines[row, 6] = text
    own = lines[rows]
    counters = FrameCounters(own[:, 1], own[:, 2], own[:, 6])
    codes = torch.randint(CODES, (len(ROWS), GROUPS), generator=torch.Generator().manual_seed(3)).to(DEVICE)
    offsets = CODES * torch.arange(GROUPS, device=DEVICE)
    tables = FrameTables(random(GROUPS * CODES, WIDTH, dtype=dtype), offsets, random(WIDTH, dtype=dtype, seed=1))
    memory = FrameMemory(
        torch.full((ALL, RING, GROUPS), -7, dtype=torch.int32, device=DEVICE),
        torch.full((ALL, WIDTH), float("nan"), dtype=dtype, device=DEVICE), lines[:, 1:4],
        random(ALL, TOKENS, WIDTH, dtype=dtype, seed=2),
    )  # fmt: skip
    status = torch.tensor(STATUSES, dtype=torch.int32, device=DEVICE)
    record = op(codes[:, 0], codes[:, 1:], status, counters, rows, memory, tables, RUNNING)
    return record, memory, lines, tables, codes


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["reference", "kernel"])
def test_a_frame_is_kept_and_the_next_input_made(name: str, dtype: torch.dtype) -> None:
    op = reference.frame_step if name == "reference" else kernel("frame_step")
    record, memory, lines, tables, codes = run(op, dtype)
    for n, (row, status, frame, text) in enumerate(zip(ROWS, STATUSES, FRAMES, TEXTS, strict=True)):
        going = int(status == RUNNING)
        assert lines[row].tolist() == [-7, 20 + row + going, frame + going, status, -7, -7, text, -7, -7]
        assert record[n].tolist() == [status, *codes[n].tolist()]
        assert memory.codes[row, frame % RING].tolist() == codes[n].tolist()
        spoken = sum(tables.table[int(code) + CODES * group].double() for group, code in enumerate(codes[n]))
        said = memory.trailing[row, min(frame, TOKENS - 1)] if frame < text else tables.pad
        close(memory.input[row], (spoken + said.double()).to(dtype), dtype)
    others = [row for row in range(ALL) if row not in ROWS]
    assert (lines[others] == -7).all() and memory.input[others].isnan().all() and (memory.codes[others] == -7).all()
