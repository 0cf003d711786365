"""The shortest time that a decode step can take when weights come over the bus, and how many can listen then.

A step is no faster than the bus brings its missing bytes, nor than the device computes. The bus is measured with copies
as steps make them, from pinned memory. Once there is an engine, its compute time is measured as the time of its passes
less their waits; before that it is estimated as the time to read the weights from the device's own memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sonant.byte_size import shown
from sonant.config import EngineConfig
from sonant.engine.runner import Runner
from sonant.engine.weight_plan import WeightPlan
from sonant.models.spec import ModelSpec
from sonant.models.weights import HostMemory

_GPU_BYTES, _CPU_BYTES = 32 << 20, 8 << 20  # of a timed copy: an engine has little memory left
_COPIES, _ROUNDS = 4, 8
_STEPS = 3


@dataclass(frozen=True)
class StepFloor:
    missing_bytes: float  # that must be copied in a decode step
    bus_bytes_per_s: float
    compute_s: float
    frame_s: float
    rows: int
    batch: int

    @property
    def bus_s(self) -> float:
        return self.missing_bytes / self.bus_bytes_per_s

    @property
    def seconds(self) -> float:
        return max(self.bus_s, self.compute_s)

    @property
    def listeners(self) -> int:
        """How many requests steps of this length serve in real time: as many batches as steps fit into a frame's time,
        up to all rows. What more rows take to compute is not counted."""
        return min(self.rows, int(self.frame_s / max(self.seconds, 1e-9)) * self.batch)

    def __str__(self) -> str:
        return (
            f"a step brings {shown(int(self.missing_bytes))} over a bus of {self.bus_bytes_per_s / 1e9:.1f} GB/s: it "
            f"takes at least {1000 * self.seconds:.2f} ms ({1000 * self.bus_s:.2f} ms of copies beside "
            f"{1000 * self.compute_s:.2f} ms of work) for {1000 * self.frame_s:.0f} ms of sound, so {self.listeners} "
            "can listen in real time"
        )


def expected_floor(plan: WeightPlan, spec: ModelSpec, config: EngineConfig, device: torch.device) -> StepFloor:
    """For an engine that is yet to be loaded; `config` is resolved for its machine."""
    compute_s = spec.frame_weight_bytes / memory_speed(device)
    rows, batch = config.max_rows or 1, config.max_batch or 1
    return StepFloor(plan.step_bytes, bus_speed(device), compute_s, spec.frame_s, rows, batch)


def measured_floor(runner: Runner, plan: WeightPlan) -> StepFloor:
    """Called before the step thread begins, since on a GPU it steps the scratch row, as captures do. That row may hold
    values that are not numbers, which only our kernels can take, so nothing is stepped on a CPU."""
    spec, config = runner.model.spec, runner.config
    if runner.device.type != "cuda":
        return expected_floor(plan, spec, config, runner.device)
    rows, batch = config.max_rows or 1, config.max_batch or 1
    return StepFloor(plan.step_bytes, bus_speed(runner.device), _compute_s(runner), spec.frame_s, rows, batch)


def _compute_s(runner: Runner) -> float:
    assert runner.paging is not None
    step, clock = runner.frame[runner.model.spec.usual_variant], runner.paging.steps.clock
    with torch.inference_mode():
        step([runner.rows.scratch])
        before = clock.read()
        for _ in range(_STEPS):
            step([runner.rows.scratch])
        after = clock.read()
    return max(0.0, (after.pass_s - before.pass_s) - (after.wait_s - before.wait_s)) / _STEPS


def bus_speed(device: torch.device) -> float:
    """Bytes a second from pinned memory to the device."""
    count = _GPU_BYTES if device.type == "cuda" else _CPU_BYTES
    host = HostMemory(frozenset(), device).take("measured", [torch.empty(count, dtype=torch.uint8, device="meta")])
    host.memory.fill_(1)
    place = torch.empty(host.memory.shape, dtype=torch.uint8, device=device)
    return _speed(lambda: _copy(place, host.memory), count, device)


def memory_speed(device: torch.device) -> float:
    """Bytes a second at which the device reads its own memory; a copy counts twice, since it reads and writes."""
    count = _GPU_BYTES if device.type == "cuda" else _CPU_BYTES
    source = torch.zeros(count, dtype=torch.uint8, device=device)
    place = torch.empty_like(source)
    return 2 * _speed(lambda: _copy(place, source), count, device)


def _copy(place: Tensor, source: Tensor) -> None:
    place.copy_(source, non_blocking=True)


def _speed(copy: Callable[[], None], count: int, device: torch.device) -> float:
    """The best of several rounds, since a floor must hold; in the first, pages are touched and the bus wakes up."""
    copy()
    return max(_COPIES * count / max(_copies_s(copy, device), 1e-9) for _ in range(_ROUNDS))


def _copies_s(copy: Callable[[], None], device: torch.device) -> float:
    if device.type != "cuda":
        began_s = time.perf_counter()
        for _ in range(_COPIES):
            copy()
        return time.perf_counter() - began_s
    began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    began.record()
    for _ in range(_COPIES):
        copy()
    ended.record()
    ended.synchronize()
    return began.elapsed_time(ended) / 1000
