"""How many threads a server's engine computes with on a CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from sonant.errors import ConfigError
from sonant.serving.cpu_threads import use_threads
from sonant.serving.options import ModelOptions


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (8, 7)])
def test_a_core_is_left_for_what_is_around_the_engine(
    cores: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    use_threads(None, "cpu")
    assert torch.get_num_threads() == threads


def test_who_asks_gets_what_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    use_threads(3, "cpu")
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize(("device", "variable"), [("cpu", "5"), ("cuda", None), ("cuda:1", None)])
def test_the_environment_goes_before_the_rule_and_a_gpus_host_is_left_alone(
    device: str, variable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    torch.set_num_threads(4)
    use_threads(None, device)
    assert torch.get_num_threads() == 4


def test_no_threads_at_all_are_refused() -> None:
    with pytest.raises(ConfigError, match="threads must be from 1"):
        ModelOptions(threads=0)
