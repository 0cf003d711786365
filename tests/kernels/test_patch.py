"""The end of a step that makes patches: the reference and the kernel against rules written out in plain Python."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.against import DEVICE, DTYPES, kernel, random
from sonant.kernels import reference
from sonant.kernels.reference import PatchCounters, PatchMemory, PatchStatuses

STATUSES = PatchStatuses(running=0, capped=2, last=3)
STOPPED, RING, PATCH, WIDTH, MIN_LEN = 1, 5, (3, 7), 40, 2
# status, frame, frame limit, whether the model would stop → status, patches made
CASES = [
    ((0, 4, 9, False), (0, 5)),
    ((0, 4, 9, True), (3, 5)),
    ((0, 2, 9, True), (0, 3)),  # too early to stop
    ((0, 9, 9, False), (2, 9)),
    ((0, 9, 9, True), (2, 9)),
    ((STOPPED, 4, 9, True), (STOPPED, 4)),
    ((3, 5, 9, False), (3, 5)),
    ((2, 9, 9, True), (2, 9)),
]
ROWS = [3, 0, 7, 1, 8, 2, 9, 5]


def run(op: Any, dtype: torch.dtype) -> tuple[Tensor, PatchMemory, Tensor]:
    lines = torch.full((11, 9), -7, dtype=torch.int32, device=DEVICE)
    for row, ((status, frame, limit, _), _) in zip(ROWS, CASES, strict=True):
        numbers = [20 + row, frame, 1, status, -7, MIN_LEN, limit]
        lines[row, 1:8] = torch.tensor(numbers, dtype=torch.int32, device=DEVICE)
    rows = torch.tensor(ROWS, device=DEVICE)
    own = lines[rows]

    def unwritten(*shape: int, of: torch.dtype = torch.float32) -> Tensor:
        return torch.full((11, *shape), float("nan"), dtype=of, device=DEVICE)

    memory = PatchMemory(unwritten(RING, *PATCH), unwritten(*PATCH), unwritten(WIDTH, of=dtype), lines[:, 1:5])
    stop = torch.tensor([[0.0, 1.0] if stops else [1.0, 1.0] for (*_, stops), _ in CASES], device=DEVICE).to(dtype)
    counters = PatchCounters(own[:, 1], own[:, 2], own[:, 6], own[:, 7], own[:, 4])
    patch, embedded = random(8, *PATCH), random(8, WIDTH, dtype=dtype, seed=1)
    return op(patch, embedded, stop, counters, rows, memory, STATUSES), memory, lines


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["reference", "kernel"])
def test_a_row_ends_as_the_rules_say(name: str, dtype: torch.dtype) -> None:
    record, memory, lines = run(reference.patch_step if name == "reference" else kernel("patch_step"), dtype)
    patch, embedded = random(8, *PATCH), random(8, WIDTH, dtype=dtype, seed=1)
    for n, (row, ((was, frame, _, _), (status, made))) in enumerate(zip(ROWS, CASES, strict=True)):
        going = was == status == STATUSES.running
        assert lines[row].tolist()[:6] == [-7, 20 + row + going, made, 0, status, -7]
        assert int(record[n, 0]) == status
        assert torch.equal(record[n, 1:].view(torch.float32).view(PATCH), patch[n])
        assert torch.equal(memory.patches[row, frame % RING], patch[n]) and torch.equal(memory.before[row], patch[n])
        assert torch.equal(memory.input[row], embedded[n])
        assert int(memory.patches[row].isnan().all((1, 2)).sum()) == RING - 1
    others = [row for row in range(11) if row not in ROWS]
    assert (lines[others] == -7).all()
    assert all(kept[others].isnan().all() for kept in memory[:3])
