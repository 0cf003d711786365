"""The source of a stack in one launch, run on a CPU with all its blocks at once, computes what the reference does."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels.cpu_machine import OnCpu
from kernels.stack_cases import StackCase, error_of, exact
from sonant.kernels import reference
from sonant.kernels.cuda import stack
from sonant.kernels.cuda.kernel import CudaKernel
from sonant.kernels.cuda.stack import Form, Grid
from sonant.kernels.reference import LocalWeights

pytest.importorskip("triton")
from sonant.kernels.triton import local_stack as chain
from sonant.kernels.triton.split_k import counters

CASE = StackCase(256, 1024, 4, 2, 2, 2, 11)
GRID = Grid(clusters=16, ranks=2, ahead=3, pace=1500)
compiled = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")


@pytest.fixture
def on_cpu(machine: OnCpu, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    machine.take_over(monkeypatch)
    with torch.no_grad():
        yield


@compiled
@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "grid"),
    [
        (CASE, GRID),
        (replace(CASE, sequences=3, steps=6, layers=1), GRID),  # rows that end within a tile
        # more heads than warps, a projection that clusters do not share evenly, and chunks just in time
        (StackCase(512, 512, 8, 1, 2, 5, 2), Grid(clusters=32, ranks=2, ahead=2, pace=300)),
    ],
)
def test_a_stack_in_one_launch_is_as_near_as_the_reference(case: StackCase, grid: Grid, on_cpu: None) -> None:
    weights, x = case.weights(1), case.rows(1)
    assert stack.refusal(x, weights, grid) is None
    expected = exact(x, weights)
    own = x.clone()
    got = stack.local_stack(own, weights, grid=grid)
    assert got is own  # it is overwritten
    assert error_of(got, expected) < 1.1 * error_of(reference.local_stack(x.clone(), weights), expected)
    assert torch.equal(stack.local_stack(x.clone(), weights, grid=grid), got)  # in another order of blocks
    barriers = 4 * case.layers - 1
    assert counters(weights[0].first_gain, 1, 2).tolist() == [2 * barriers * grid.ranks * grid.clusters]
    alone = x.clone()
    for layer in weights:  # as where hooks bring each layer's weights just before it runs
        alone = stack.local_stack(alone, [layer], grid=grid)
    assert torch.equal(alone, got)


@compiled
@pytest.mark.slow
def test_a_sequence_whose_numbers_have_gone_wrong_reaches_no_other(on_cpu: None) -> None:
    """A place of the batch that nobody uses may hold anything, and products read past a sequence's last value."""
    case = replace(CASE, sequences=3, steps=6, layers=1)
    weights, x = case.weights(1), case.rows(1)
    expected = stack.local_stack(x.clone(), weights, grid=GRID)
    for strange in range(3):
        rows, others = x.clone(), [n for n in range(3) if n != strange]
        rows[strange] = float("nan")
        got = stack.local_stack(rows, weights, grid=GRID)
        assert torch.equal(got[others], expected[others]) and got[strange].isnan().all()


@compiled
@pytest.mark.slow
def test_a_counter_may_run_over(on_cpu: None) -> None:
    """Also with clusters of four blocks."""
    grid = Grid(clusters=8, ranks=4, ahead=2, pace=300)
    weights, x = CASE.weights(2), CASE.rows(2)
    counters(weights[0].first_gain, 1, 2).fill_(-3 * grid.ranks * grid.clusters)
    got, expected = stack.local_stack(x.clone(), weights, grid=grid), exact(x, weights)
    assert error_of(got, expected) < 1.1 * error_of(reference.local_stack(x.clone(), weights), expected)
    assert counters(weights[0].first_gain, 1, 2).tolist() == [(4 * CASE.layers - 1 - 3) * grid.ranks * grid.clusters]


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (Form(1024, 4096, 16, 2, 3), None),
        (Form(1024, 4096, 16, 2, 3, clusters=32, ranks=4), None),
        (Form(1024, 4096, 18, 2, 3), None),  # clusters may have different numbers of the projection's tiles
        (Form(1024, 4096, 16, 4, 3), "no keys in common"),
        (Form(1024, 9216, 16, 2, 3), "inner 9216 is too wide"),
        (Form(4096, 4096, 16, 2, 3), "hidden 4096 is too wide"),
        (Form(1536, 4096, 16, 2, 3), "hidden 1536 is no multiple"),
        (Form(1024, 1000, 16, 2, 3), "inner 1000 is no multiple"),
    ],
)
def test_widths_there_is_a_program_for(form: Form, reason: str | None) -> None:
    told = form.refusal()
    assert (told is None) if reason is None else reason in (told or "")


def changed(weights: list[LocalWeights], **change: Any) -> list[LocalWeights]:
    return [weights[0]._replace(**change), *weights[1:]]


def test_what_the_kernel_does_not_take_goes_to_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(CASE, layers=1)
    weights, x = small.weights(1), small.rows(1)
    heads = weights[0].heads
    refused = {
        "44 rows": (x.expand(2, 2, 11, 256).flatten(0, 1), weights),
        "sequences of 17": (x.new_zeros(1, 17, 256), weights),
        "29 layers": (x, weights * 29),
        "bfloat16": (x.float(), weights),
        "eight bits": (x, changed(weights, down=reference.quantize(weights[0].down))),
        "in one piece": (x, changed(weights, down=weights[0].down.T.contiguous().T)),
        "norms of their own": (x, changed(weights, heads=heads._replace(q_weight=x[0, 0, :128]))),
        "differ by sequence": (x, changed(weights, heads=heads._replace(cos=heads.cos.expand(2, -1, -1, -1)))),
    }
    monkeypatch.setattr(chain, "local_stack", lambda *args: "triton's")
    monkeypatch.setattr(CudaKernel, "launch", lambda *args: None)
    assert stack.refusal(x, weights, GRID) is None and stack.local_stack(x, weights, grid=GRID) is x
    for reason, (rows, layers) in refused.items():
        told = stack.refusal(rows, layers, GRID)
        assert told is not None and reason in told, reason
        assert stack.local_stack(rows, layers, grid=GRID) == "triton's"
    monkeypatch.setattr(CudaKernel, "is_ready", lambda self, device: False)
    assert stack.local_stack(x, weights, grid=GRID) == "triton's"
