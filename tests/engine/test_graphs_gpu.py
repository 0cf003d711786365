"""Captures on a GPU, for what the fakes of test_graphs.py cannot show."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from torch import Tensor

from sonant.device_copy import reserve_pinned, to_device
from sonant.engine.graphs import CapturedGraph, GraphPool, capture_graph
from sonant.kernels.cuda.trial import beside_captures

pytestmark = pytest.mark.gpu


def test_a_replay_leaves_the_results_of_other_graphs_alone() -> None:
    """The pool's memory is shared: a graph captured later has its results where an earlier one has intermediates."""
    pool = GraphPool(torch.device("cuda"))

    def works(given: Tensor) -> Tensor:
        return (given.expand(1 << 20) * 3).cumsum(0)[-1:]

    def results(given: Tensor) -> Tensor:
        return given.expand(1 << 20) + 1

    first = capture_graph("works", works, torch.full((1,), 2.0, device="cuda"), pool)
    second = capture_graph("results", results, torch.full((1,), 4.0, device="cuda"), pool)
    second.graph.replay()
    first.graph.replay()
    assert second.out.eq(5.0).all()
    assert first.out.item() == pytest.approx(6 * 2**20, rel=1e-3)


def test_two_threads_may_capture_at_once() -> None:
    captured: list[CapturedGraph] = []

    def capture() -> None:
        pool = GraphPool(torch.device("cuda"))
        with torch.cuda.stream(torch.cuda.Stream()):
            for n in range(8):
                given = torch.full((1024,), float(n), device="cuda")
                captured.append(capture_graph("twice", lambda x: x * 2, given, pool))

    threads = [threading.Thread(target=capture) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(captured) == 16
    for each in captured:
        each.graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(each.out, each.given * 2)


def test_what_is_sent_after_a_capture_needs_no_memory_from_the_driver() -> None:
    device = torch.device("cuda")
    torch.cuda.init()  # without it there are no statistics
    reserve_pinned(device)
    asked = torch.cuda.host_memory_stats()["num_host_alloc"]
    capture_graph("anything", lambda x: x * 2, torch.ones(8, device=device), GraphPool(device))
    sent = [to_device(np.zeros(size), device) for size in (1, 100, 10_000)]
    assert [len(each) for each in sent] == [1, 100, 10_000]
    assert torch.cuda.host_memory_stats()["num_host_alloc"] == asked


def test_a_larger_size_is_captured_without_a_run_and_does_the_same() -> None:
    """Kernels that no smaller size needed are loaded during the capture: for many values a sort is another kernel."""
    device = torch.device("cuda")

    def run(given: Tensor) -> Tensor:
        wide = given[:, None] * torch.arange(1, 4097, device=device)
        return wide.float().sort(dim=1, descending=True).values[:, :3] @ torch.ones(3, 2, device=device)

    pool = GraphPool(device)
    one = capture_graph("of one", run, torch.ones(1, dtype=torch.long, device=device), pool)
    many = capture_graph("of many", run, torch.arange(1, 301, device=device), pool, one.out)
    for graph in (many, one, many):
        graph.graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(many.out, run(many.given)) and many.out.shape == (300, 2)


def test_counters_of_a_split_product_are_not_of_the_graph_that_asked_first() -> None:
    """Otherwise only that graph would clear them, and graphs captured before it would use the same memory."""
    split_k = pytest.importorskip("sonant.kernels.triton.split_k")
    weight, pool = torch.ones(8, 8, device="cuda"), GraphPool(torch.device("cuda"))
    runs = list[bool]()

    def works(given: Tensor) -> Tensor:
        return (given.expand(1 << 20) * 3).cumsum(0)[-1:].int()

    def counted(given: Tensor) -> Tensor:
        runs.append(torch.cuda.is_current_stream_capturing())
        return given + split_k.counters(weight, len(given), 2)

    earlier = capture_graph("works", works, torch.full((1,), 2.0, device="cuda"), pool)
    like = torch.zeros(1, dtype=torch.int32, device="cuda")
    graphs = [
        capture_graph("counts", counted, torch.zeros(size, dtype=torch.int32, device="cuda"), pool, like)
        for size in (5, 7, 5)
    ]
    assert runs == [True, True, True]
    for graph in (earlier, *graphs, earlier, *graphs):
        graph.graph.replay()
    torch.cuda.synchronize()
    assert not any(graph.out.any() for graph in graphs)
    assert not split_k.counters(weight, 7, 2).any()


def test_what_is_tried_inside_a_capture_is_not_in_the_graph() -> None:
    device = torch.device("cuda")
    pool, seen = GraphPool(device), list[float]()

    def run(x: torch.Tensor) -> torch.Tensor:
        if not seen:
            with beside_captures(device):
                seen.append(float((torch.ones(8).to(device) * 3).sum().cpu()))
        return x * 2

    made = capture_graph("tries", run, torch.ones(8, device=device), pool, like=torch.ones(4, device=device))
    assert seen == [24.0]
    assert made.replay(np.full(8, 5.0, np.float32)).tolist() == [10.0] * 8


def test_a_capture_that_is_spoilt_takes_no_other_along() -> None:
    device = torch.device("cuda")
    pool, runs = GraphPool(device), list[bool]()

    def run(x: torch.Tensor) -> torch.Tensor:
        runs.append(torch.cuda.is_current_stream_capturing())
        if len(runs) == 1:
            float(x.sum().cpu())  # waits for the device, which no graph can do
        return x * 2

    like = torch.ones(4, device=device)
    for size in (8, 16):
        made = capture_graph("waits", run, torch.ones(size, device=device), pool, like=like)
        assert made.replay(np.full(size, 5.0, np.float32)).tolist() == [10.0] * size
    assert runs == [True, False, True, True]
