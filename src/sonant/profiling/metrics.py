"""The figures of one steady step, for which a budget can set limits."""

from __future__ import annotations

import re

import numpy as np

from sonant.profiling.analysis import Analysis
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


def measure(analysis: Analysis) -> dict[str, float]:
    device, runtime, names = analysis.trace.device, analysis.trace.runtime, analysis.trace.names
    events, gaps = analysis.steady(), analysis.steady_gaps()
    kernels = events[(device.kind[events] == Kind.KERNEL) | (device.kind[events] == Kind.OP)]
    transfers = analysis.steady(Work.TO_HOST, Work.TO_DEVICE)
    idle = float(analysis.gaps.duration[gaps].sum())
    dry = np.unique(analysis.gaps.call[analysis.steady_gaps(Cause.SYNC)])
    totals: dict[str, float] = {
        "step_us": analysis.step_ns * analysis.count / 1e3,
        "busy_us": (analysis.step_ns * analysis.count - idle) / 1e3,
        "idle_us": idle / 1e3,
        "kernels": len(kernels),
        "tiny": int((device.duration[kernels] < TINY_NS).sum()),
        "fills": len(analysis.steady(Work.FILL)),
        "copies": len(analysis.steady(Work.COPY)),
        "casts": len(analysis.steady(Work.CAST)),
        "cats": len(analysis.steady(Work.CAT)),
        "to_host": len(analysis.steady(Work.TO_HOST)),
        "to_device": len(analysis.steady(Work.TO_DEVICE)),
        "pageable": int(named(device, names, PAGEABLE)[transfers].sum()),
        "syncs": len(dry),
        "waits": len(analysis.steady_calls(named(runtime, names, SYNC))),
        "host_reads": len(analysis.steady_on_host(analysis.trace.ops, named(analysis.trace.ops, names, _READS))),
        "graphs": len(analysis.steady_calls(named(runtime, names, GRAPH_LAUNCH))),
        "driver_allocations": len(analysis.steady_calls(named(runtime, names, ALLOCATION))),
        "allocations": len(analysis.steady_allocations()),
        "captures": len(analysis.steady_calls(named(runtime, names, PREPARATION))),
    }
    return {name: round(totals[name] / analysis.count, 4) for name in MEANING}
