"""The least time that a step of paged weights takes, as reported, and the pinned host memory of such weights."""

from __future__ import annotations

import gc
import logging
from pathlib import Path

import pytest
import torch

import sonant
from sonant import EngineConfig
from sonant.engine.weight_floor import StepFloor, bus_speed, memory_speed
from sonant.errors import ConfigError
from sonant.models.weights import HostMemory

CPU = torch.device("cpu")


def floor(missing_bytes: float = 2e9, compute_s: float = 0.002, rows: int = 64) -> StepFloor:
    return StepFloor(missing_bytes, 50e9, compute_s, frame_s=0.08, rows=rows, batch=16)


def test_the_bus_or_the_work_whichever_takes_longer() -> None:
    assert floor().seconds == pytest.approx(0.04)
    assert floor(compute_s=0.05).seconds == 0.05
    assert floor(missing_bytes=0).seconds == 0.002


def test_a_batch_is_in_real_time_as_often_as_its_step_fits_into_a_frame() -> None:
    assert floor(compute_s=0.05).listeners == 16
    assert floor(missing_bytes=1.9e9).listeners == 32
    assert floor(missing_bytes=0).listeners == 64  # no more than rows
    assert floor(missing_bytes=5e9).listeners == 0
    assert "at least 40.00 ms" in str(floor()) and "32 can listen" in str(floor())


def test_copies_have_a_speed() -> None:
    assert 1e8 < bus_speed(CPU) < 1e12 and 1e8 < memory_speed(CPU) < 1e12


def test_an_engine_tells_its_own_in_the_log(tiny_higgs: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, "sonant.loading"),
        sonant.load(tiny_higgs, device="cpu", config=EngineConfig(gpu_weights="8MiB", max_rows=2)) as engine,
    ):
        assert engine.weight_floor is not None and engine.weight_floor.compute_s > 0
    assert "in host memory; a step brings" in caplog.text and "can listen in real time" in caplog.text


def test_a_machine_that_cannot_pin_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    class Runtime:
        def cudaHostRegister(self, *_: int) -> int:
            return 2

    monkeypatch.setattr(torch.cuda, "cudart", Runtime)
    with pytest.raises(ConfigError, match=r"ulimit -l unlimited.*--ulimit memlock=-1.*larger gpu_weights"):
        HostMemory(frozenset(), torch.device("cuda")).take("a", [torch.empty(9, device="meta")])


def test_memory_is_pinned_for_as_long_as_it_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = dict[int, int]()

    class Runtime:
        def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
            pinned[address] = size
            return 0

        def cudaHostUnregister(self, address: int) -> None:
            del pinned[address]

    monkeypatch.setattr(torch.cuda, "cudart", Runtime)
    host = HostMemory(frozenset(), torch.device("cuda"))
    view = host.take("a", [torch.empty(5000, device="meta")]).views()[0]
    del host
    gc.collect()
    assert list(pinned.values()) == [20_480]
    view.fill_(1)
    del view
    gc.collect()
    assert not pinned


def test_host_memory_is_no_more_than_the_weights_in_it() -> None:
    host = HostMemory(frozenset(), CPU)
    tensors = [torch.arange(5.0), torch.arange(12).view(3, 4).T, torch.tensor(7.0), torch.ones(2, 0)]
    block = host.adopt("a", tensors)
    for view, tensor in zip(block.views(), tensors, strict=True):
        assert torch.equal(view, tensor) and view.stride() == tensor.stride()
        assert view.data_ptr() % 16 == 0 or not view.numel()
    assert host.adopt("a", block.views()) is block
    assert host.total_bytes <= len(tensors) * 512
