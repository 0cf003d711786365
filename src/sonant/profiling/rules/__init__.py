"""The rules. Each is a function from an analysis to its findings: none, one or several."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sonant.profiling.analysis import Analysis
from sonant.profiling.finding import Finding
from sonant.profiling.rules import bytes_moved, device_time, host_time, transfers

Rule = Callable[[Analysis], Iterable[Finding]]

RULES: tuple[Rule, ...] = (
    bytes_moved.fills,
    bytes_moved.copies,
    transfers.to_host,
    transfers.pageable,
    transfers.weight_waits,
    transfers.syncs,
    host_time.launch_bound,
    host_time.pauses,
    host_time.allocations,
    host_time.preparation,
    device_time.kernel_gaps,
    device_time.chains,
    device_time.tiny_kernels,
    device_time.padding,
    device_time.low_bandwidth,
)


def apply(analysis: Analysis) -> list[Finding]:
    """All findings, the most expensive first; upper bounds come after measurements."""
    if not analysis.count or not analysis.step_ns:
        return []
    found = [finding for rule in RULES for finding in rule(analysis)]
    return sorted(found, key=lambda f: (f.at_most, -f.lost_us, -f.count))
