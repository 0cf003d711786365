"""Which call put each event on the device, and when: the join that all analysis of the host needs."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sonant.profiling.events import Events, Ints, Trace

_LAUNCH = re.compile(r"Launch|Memcpy|Memset|Graph", re.IGNORECASE)
GRAPH_LAUNCH = re.compile(r"(cuda|cu)GraphLaunch")
SYNC = re.compile(
    r"(cuda|cu)(Stream|Event|Device|Ctx|Context)Synchronize|^(cudaMemcpy|cudaMemcpy2D|cuMemcpy(DtoH|HtoD|DtoD)?)$|cudaThreadSync"
)
ALLOCATION = re.compile(
    r"^(cudaMalloc|cudaFree|cuMemAlloc|cuMemFree|cudaHostAlloc|cudaMallocHost|cudaFreeHost|cuMemHostAlloc|cuMemFreeHost|"
    r"cuMemCreate|cuMemMap|cuMemUnmap|cuMemRelease|cudaHostRegister)"
)
PREPARATION = re.compile(
    r"BeginCapture|EndCapture|GraphInstantiate|cuModuleLoad|cuLibraryLoad|cuLinkComplete|nvrtcCompile|cuGraphExecUpdate"
)


@dataclass(frozen=True)
class Launches:
    """For each event on the device: when its call began and ended, its thread, and its place among the calls."""

    start: Ints
    end: Ints
    thread: Ints  # -1 if its call is not in the trace
    call: Ints  # index in trace.runtime; -1 if it is not there


def named(events: Events, names: list[str], pattern: re.Pattern[str]) -> npt.NDArray[np.bool_]:
    """Which events have a name in which the pattern is found."""
    numbers = [int(n) for n in np.unique(events.name) if pattern.search(names[n])]
    mask: npt.NDArray[np.bool_] = np.isin(events.name, numbers)
    return mask


def launches(trace: Trace) -> Launches:
    device, runtime = trace.device, trace.runtime
    if trace.stand_in:  # an operator on the CPU is its own launch
        return Launches(device.start, device.end, device.track, np.full(len(device), -1))
    calls = np.flatnonzero((runtime.correlation != 0) & named(runtime, trace.names, _LAUNCH))
    start, end = device.start.copy(), device.start.copy()
    thread, call = np.full(len(device), -1), np.full(len(device), -1)
    if len(calls):
        # A driver call inside a runtime call has the same correlation; the outer one, which began first, counts.
        order = calls[np.argsort(runtime.correlation[calls], kind="stable")]
        keys = runtime.correlation[order]
        place = np.minimum(np.searchsorted(keys, device.correlation), len(keys) - 1)
        hit = (keys[place] == device.correlation) & (device.correlation != 0)
        found = order[place[hit]]
        start[hit], end[hit] = runtime.start[found], runtime.end[found]
        thread[hit], call[hit] = runtime.track[found], found
    return Launches(start, end, thread, call)
