"""When a step is run before it is captured, and what happens if a capture needs a run after all.

There is no CUDA here: a capture runs the step, as it does on a GPU, and its mode is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from sonant.engine import graphs
from sonant.engine.graphs import GraphedStep


class Pool:
    """Records the mode of each capture."""

    def __init__(self, runs_first: bool = False) -> None:
        self.runs_first, self.active, self.modes = runs_first, False, list[str]()

    @contextmanager
    def capturing(self, graph: Any, mode: str) -> Iterator[None]:
        self.modes.append(mode)
        self.active = True
        try:
            yield
        finally:
            self.active = False


class Doubling:
    """A step that records its runs, and at some sizes must be run before it can be captured."""

    def __init__(self, pool: Pool, needs_a_run: tuple[int, ...] = ()) -> None:
        self.pool, self.unready, self.runs = pool, set(needs_a_run), list[tuple[int, bool]]()

    def __call__(self, rows: Tensor) -> Tensor:
        self.runs.append((len(rows), self.pool.active))
        if not self.pool.active:
            self.unready.discard(len(rows))
        elif len(rows) in self.unready:
            raise RuntimeError("run it once before it is captured")
        return torch.stack([rows * 2, rows * 3], dim=1).int()


@pytest.fixture(autouse=True)
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs.torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(graphs.torch.cuda, "synchronize", lambda device: None)


def captured(pool: Any, run: Doubling, sizes: tuple[int, ...]) -> GraphedStep:
    step = GraphedStep("doubling", run, torch.device("cpu"), scratch_row=7)
    step.capture(sizes, pool)
    return step


def test_only_the_first_size_is_run_before_it_is_captured() -> None:
    pool = Pool()
    run = Doubling(pool)
    step = captured(pool, run, (1, 2, 4))
    assert run.runs == [(1, False), (1, True), (2, True), (4, True)]
    assert pool.modes == ["thread_local", "relaxed", "relaxed"]
    for size, graph in step.captured.items():
        assert graph.out.shape == (size, 2) and graph.out.dtype == torch.int32
        assert graph.out.tolist() == [[14, 21]] * size


def test_a_size_that_comes_before_all_smaller_ones_is_run_first() -> None:
    """As if kernels of the smaller sizes were not yet compiled."""
    pool = Pool()
    run = Doubling(pool)
    captured(pool, run, (4, 8, 1, 2))
    assert run.runs == [(4, False), (4, True), (8, True), (1, False), (1, True), (2, True)]


def test_what_cannot_be_captured_at_once_is_run_and_captured_then() -> None:
    pool = Pool()
    run = Doubling(pool, needs_a_run=(2,))
    step = captured(pool, run, (1, 2, 4))
    assert run.runs == [(1, False), (1, True), (2, True), (2, False), (2, True), (4, True)]
    assert step.captured[2].out.tolist() == [[14, 21]] * 2


def test_what_can_never_be_captured_is_told() -> None:
    pool = Pool()
    run = Doubling(pool)
    step = captured(pool, run, (1,))

    def fails(rows: Tensor) -> Tensor:
        raise RuntimeError("out of memory")

    step.run = fails
    with pytest.raises(RuntimeError, match="out of memory"):
        step.capture((2,), pool)
    assert list(step.captured) == [1]
    assert not graphs._CAPTURING.locked()


def test_steps_of_which_something_goes_on_outside_are_always_run_first() -> None:
    pool = Pool(runs_first=True)
    run = Doubling(pool)
    captured(pool, run, (1, 2))
    assert run.runs == [(1, False), (1, True), (2, False), (2, True)]
    assert pool.modes == ["thread_local"] * 2
