"""A delay pattern's step: the reference against rules written in plain Python, and the kernel against the reference."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from kernels.against import DEVICE, kernel
from sonant.kernels import reference
from sonant.kernels.reference import DelayPattern, RowCounters, Statuses

BOS, EOS, CODEBOOKS, RING, BEFORE = 1024, 1025, 8, 45, 31
STATUSES = Statuses(running=0, stopped=1, capped=2, priming=4)
PATTERN = DelayPattern(BOS, EOS, BEFORE, STATUSES)
ROWS, STEPS = 6, 40


@dataclass
class Told:
    """One stream by the delay pattern's rules, written as the rules are worded."""

    limit: int
    rows: list[list[int]] = field(default_factory=lambda: [[BOS] * CODEBOOKS])
    first_eos: int | None = None
    ended: int | None = None

    def step(self, drawn: list[int]) -> list[int]:
        n = len(self.rows)
        row = [BOS if k >= n else code for k, code in enumerate(drawn)]
        if self.first_eos is not None:
            row[: n - self.first_eos] = [EOS] * min(CODEBOOKS, n - self.first_eos)
        if self.ended is None and all(code == EOS for code in row):
            self.ended = STATUSES.stopped
        elif self.ended is None and n - CODEBOOKS >= self.limit:
            self.ended = STATUSES.capped
        if self.ended is not None:
            return [self.ended]
        self.rows.append(row)
        if self.first_eos is None and EOS in row:
            self.first_eos = n
        if n < CODEBOOKS:
            return [STATUSES.priming]
        return [STATUSES.running, *(min(self.rows[n - CODEBOOKS + 1 + k][k], BOS - 1) for k in range(CODEBOOKS))]


def start() -> tuple[torch.Tensor, torch.Tensor]:
    """Ring and counters of rows at their first step; the ring is full of other rows' codes."""
    generator = torch.Generator().manual_seed(5)
    ring = torch.randint(0, BOS, (ROWS + 2, RING, CODEBOOKS), generator=generator, dtype=torch.int32)
    ring[:, BEFORE] = BOS
    counters = torch.zeros(ROWS + 2, 7, dtype=torch.int32)
    counters[:, 1] = 17
    return ring.to(DEVICE), counters.to(DEVICE)


def draws(seed: int) -> torch.Tensor:
    """Codes [STEPS, ROWS, CODEBOOKS], with an EOS now and then, and one row at one step of nothing else."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, EOS, (STEPS, ROWS, CODEBOOKS), generator=generator)
    rare = torch.rand(codes.shape, generator=generator) < 0.01
    codes[rare] = EOS
    codes[20, 0] = EOS
    return codes.to(DEVICE)


def run(op: Any, seed: int, limits: list[int]) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
    ring, lines = start()
    rows = torch.tensor([3, 0, 7, 1, 5, 2], device=DEVICE)
    limit = torch.tensor(limits, dtype=torch.int32, device=DEVICE)
    counters, records = lines[:, 1:5], []
    for drawn in draws(seed):
        taken = lines[rows]
        own = RowCounters(*taken[:, 1:5].unbind(1), limit)
        records.append(op(drawn, own, rows, ring, counters, PATTERN).cpu())
    return records, ring.cpu(), lines.cpu()


@pytest.mark.parametrize("seed", range(4))
def test_a_stream_begins_and_ends_by_the_rules(seed: int) -> None:
    limits = [100, 5, 30, 1, 100, 12]
    records, _, lines = run(reference.delay_step, seed, limits)
    told = [Told(limit) for limit in limits]
    for drawn, record in zip(draws(seed).tolist(), records, strict=True):
        for stream, codes, found in zip(told, drawn, record.tolist(), strict=True):
            expected = stream.step(codes)
            assert found[: len(expected)] == expected
    for row, stream in zip([3, 0, 7, 1, 5, 2], told, strict=True):
        assert lines[row, 1:3].tolist() == [17 + len(stream.rows) - 1, len(stream.rows) - 1]
    assert (lines[:, 5:] == 0).all() and (lines[4] == lines[6]).all()


@pytest.mark.parametrize("seed", range(2))
def test_the_kernel_is_the_reference(seed: int) -> None:
    limits = [100, 5, 30, 1, 100, 12]
    expected, got = run(reference.delay_step, seed, limits), run(kernel("delay_step"), seed, limits)
    assert all(torch.equal(a, b) for a, b in zip(expected[0], got[0], strict=True))
    assert torch.equal(expected[1], got[1]) and torch.equal(expected[2], got[2])
