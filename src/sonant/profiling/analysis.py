"""Everything that the rules look at, computed once: steady steps, their work, idle time, and the sources of work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sonant.profiling.events import Events, Ints, Trace
from sonant.profiling.gaps import Cause, Gaps, added, find_gaps
from sonant.profiling.kernels import Work, Works
from sonant.profiling.launches import Launches, launches
from sonant.profiling.sources import KernelSources, Sources
from sonant.profiling.steps import Steps, segment


@dataclass(frozen=True)
class Analysis:
    trace: Trace
    launched: Launches
    steps: Steps
    works: Works
    gaps: Gaps
    added: Ints  # ns that each event on the device adds to its busy time
    sources: Sources
    mapping: KernelSources | None  # from a kernel to its operator and line, from a second trace without graphs
    bandwidth: float | None  # peak, in bytes a second

    @property
    def count(self) -> int:
        """The number of steady steps."""
        return len(self.steps.steady)

    @property
    def step_ns(self) -> float:
        """Mean length of a steady step."""
        windows = self.windows_ns
        return float(windows.mean()) if len(windows) else 0.0

    @property
    def windows_ns(self) -> Ints:
        steady = self.steps.steady
        return self.steps.end[steady] - self.steps.start[steady]

    def steady(self, *works: Work) -> Ints:
        """Events of steady steps on the device, of these kinds of work, in order."""
        mask = np.isin(self.steps.of_event, self.steps.steady)
        if works:
            mask &= self.works.among(works)
        return np.flatnonzero(mask)

    def steady_gaps(self, *causes: Cause) -> Ints:
        mask = np.isin(self.gaps.step, self.steps.steady)
        if causes:
            mask &= np.isin(self.gaps.cause, causes)
        return np.flatnonzero(mask)

    def steady_calls(self, mask: npt.NDArray[np.bool_]) -> Ints:
        """Calls of the CUDA runtime that `mask` picks and that the step thread made in steady steps."""
        return self.steady_on_host(self.trace.runtime, mask)

    def steady_allocations(self) -> Ints:
        """Allocations by torch's allocator for the step thread in steady steps, as indices of `trace.memory`."""
        memory = self.trace.memory
        # A trace without a GPU has allocations of the host only, whose device is -1.
        return self.steady_on_host(memory, (memory.size > 0) & (memory.device >= (-1 if self.trace.stand_in else 0)))

    def steady_on_host(self, events: Events, mask: npt.NDArray[np.bool_]) -> Ints:
        """Events of the step thread that `mask` picks and that lie in the host's part of steady steps."""
        picked = mask if self.steps.thread is None else mask & (events.track == self.steps.thread)
        at = np.flatnonzero(picked)
        return at[np.isin(self.step_at(events.start[at]), self.steps.steady)]

    def step_at(self, host_ns: Ints) -> Ints:
        """The step that the host was launching at each moment. A step begins with its first launch."""
        first = np.full(len(self.steps.start), np.iinfo(np.int64).max)
        inside = self.steps.of_event >= 0
        np.minimum.at(first, self.steps.of_event[inside], self.launched.start[inside])
        first = np.maximum.accumulate(first)
        step = np.searchsorted(first, host_ns, side="right") - 1
        if len(first):  # the wait for the last step belongs to it, and what comes later to none
            step[host_ns > self.steps.end[-1]] = -1
        return step

    def source_of(self, events: Iterable[int]) -> str | None:
        """The source of work on the device: from this trace if exact, else by kernel from the one without graphs, else
        as far as this trace tells."""
        for event in list(events)[:8]:
            mapped = self.mapping.find(self.trace.name_of(self.trace.device, event)) if self.mapping else None
            if mapped is not None and not self.sources.exact(self.launched, event):
                return mapped
            found = self.sources.of_device(self.launched, event)
            if found is not None:
                return found
        return None


def analyze(
    trace: Trace, *, step_name: str | None = None, mapping: Trace | None = None, bandwidth: float | None = None
) -> Analysis:
    launched = launches(trace)
    steps = segment(trace, launched, step_name)
    return Analysis(
        trace=trace,
        launched=launched,
        steps=steps,
        works=Works(trace.device, trace.names),
        gaps=find_gaps(trace, launched, steps),
        added=added(trace.device.start, trace.device.end),
        sources=Sources(trace),
        mapping=None if mapping is None else KernelSources(mapping),
        bandwidth=bandwidth or peak_bandwidth(trace),
    )


# Peak GB/s from the makers' data sheets. The first name that is part of the GPU's name counts.
_PEAKS = (
    ("B300", 8000), ("B200", 8000), ("GH200", 4000), ("H200", 4800), ("H100 PCIe", 2000), ("H100 NVL", 3900),
    ("H100", 3350), ("H20", 4000), ("A100-SXM4-80GB", 2039), ("A100 80GB", 1935), ("A100-PCIE-40GB", 1555),
    ("A100", 1555), ("L40S", 864), ("L40", 864), ("L4", 300), ("A10G", 600), ("A10", 600), ("A40", 696), ("V100", 900),
    ("T4", 320), ("RTX 5090", 1792), ("RTX 5080", 960), ("RTX 4090", 1008), ("RTX 4080", 717), ("RTX 3090", 936),
)  # fmt: skip


def peak_bandwidth(trace: Trace) -> float | None:
    if trace.gpu is None:
        return None
    if trace.gpu.bandwidth:
        return trace.gpu.bandwidth
    name = trace.gpu.name
    return next((1e9 * peak for part, peak in _PEAKS if part.lower() in name.lower()), None)
