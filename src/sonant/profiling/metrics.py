"""The figures of one steady step: what a budget can be set on."""

from __future__ import annotations

import re

import numpy as np

from sonant.profiling.analysis import Scene
from sonant.profiling.events import Kind
from sonant.profiling.gaps import Cause
from sonant.profiling.kernels import Work
from sonant.profiling.launches import ALLOCATION, GRAPH_LAUNCH, PREPARATION, SYNC, named
from sonant.profiling.rules.device_time import TINY_NS
from sonant.profiling.rules.transfers import PAGEABLE

_READS = re.compile(r"^aten::(_local_scalar_dense|nonzero|is_nonzero)$")

MEANING = {
    "step_us": "length of a step",
    "busy_us": "device at work",
    "idle_us": "device idle",
    "kernels": "kernels (operators, in a trace of the CPU)",
    "tiny": f"kernels under {TINY_NS // 1000} µs",
    "fills": "fills and memsets",
    "copies": "copies on the device",
    "casts": "casts",
    "cats": "concatenations",
    "to_host": "copies to the host",
    "to_device": "copies from the host",
    "pageable": "copies from or to pageable memory",
    "syncs": "waits of the host after which the device was dry",
    "waits": "all waits of the host",
    "host_reads": "values that Python reads (.item(), nonzero)",
    "graphs": "graph launches",
    "driver_allocations": "allocations from the driver",
    "allocations": "allocations from torch's cache",
    "captures": "captures, compilations, modules loaded",
}


def measure(scene: Scene) -> dict[str, float]:
    device, runtime, names = scene.trace.device, scene.trace.runtime, scene.trace.names
    events, gaps = scene.steady(), scene.steady_gaps()
    kernels = events[(device.kind[events] == Kind.KERNEL) | (device.kind[events] == Kind.OP)]
    transfers = scene.steady(Work.TO_HOST, Work.TO_DEVICE)
    idle = float(scene.gaps.duration[gaps].sum())
    dry = np.unique(scene.gaps.call[scene.steady_gaps(Cause.SYNC)])
    totals: dict[str, float] = {
        "step_us": scene.step_ns * scene.count / 1e3,
        "busy_us": (scene.step_ns * scene.count - idle) / 1e3,
        "idle_us": idle / 1e3,
        "kernels": len(kernels),
        "tiny": int((device.duration[kernels] < TINY_NS).sum()),
        "fills": len(scene.steady(Work.FILL)),
        "copies": len(scene.steady(Work.COPY)),
        "casts": len(scene.steady(Work.CAST)),
        "cats": len(scene.steady(Work.CAT)),
        "to_host": len(scene.steady(Work.TO_HOST)),
        "to_device": len(scene.steady(Work.TO_DEVICE)),
        "pageable": int(named(device, names, PAGEABLE)[transfers].sum()),
        "syncs": len(dry),
        "waits": len(scene.steady_calls(named(runtime, names, SYNC))),
        "host_reads": _host_reads(scene),
        "graphs": len(scene.steady_calls(named(runtime, names, GRAPH_LAUNCH))),
        "driver_allocations": len(scene.steady_calls(named(runtime, names, ALLOCATION))),
        "allocations": _allocations(scene),
        "captures": len(scene.steady_calls(named(runtime, names, PREPARATION))),
    }
    return {name: round(totals[name] / scene.count, 4) for name in MEANING}


def _host_reads(scene: Scene) -> int:
    ops = scene.trace.ops
    mask = named(ops, scene.trace.names, _READS)
    if scene.steps.thread is not None:
        mask &= ops.track == scene.steps.thread
    at = np.flatnonzero(mask)
    return int(np.isin(scene.step_at(ops.start[at]), scene.steps.steady).sum())


def _allocations(scene: Scene) -> int:
    memory = scene.trace.memory
    mask = (memory.size > 0) & (memory.device >= (-1 if scene.trace.stand_in else 0))
    if scene.steps.thread is not None:
        mask &= memory.track == scene.steps.thread
    at = np.flatnonzero(mask)
    return int(np.isin(scene.step_at(memory.start[at]), scene.steps.steady).sum())
