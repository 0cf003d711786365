"""Counts what some work asks of the device: kernels, copies, and waits of the host.

On CUDA torch.profiler sees what really ran, kernels inside a graph too. On the CPU the operators that torch dispatches
are counted; there an operator counts as a "kernel", and a value that the host reads (`.item()`) as a sync.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode

_RANGE = "sonant.counted"
_WAITS = ("cudaEventSynchronize", "cuEventSynchronize")
_SYNCS = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaMemcpy", "cuStreamSynchronize", "cuCtxSynchronize")
_CPU_COPIES = ("copy_", "_to_copy", "clone", "_copy_from")
_CPU_SYNCS = ("item", "_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "unique", "equal")


@dataclass(frozen=True)
class Counts:
    """Counts for one run of the work."""

    kernels: float
    copies: float  # copies from, to and on the device, and fills, unless kernels do them
    syncs: float  # how often the host waited for all that was launched, or read a value
    waits: float  # how often the host waited for an event, as the engine does once a step for the previous step
    names: Mapping[str, float]  # how often each kernel ran (on the CPU, each operator)


def show_copies(device: torch.device) -> None:
    """Call this before graphs are captured: a profile shows copies inside them only if the process was profiled before
    that (torch 2.11, an H200)."""
    if device.type == "cuda":
        _traced(lambda: None, 1, device)


def count(work: Callable[[], object], device: torch.device, runs: int = 4) -> Counts:
    """Counts for one run. The work runs a few times more than `runs`, so that everything is compiled and allocated."""
    work()
    if device.type != "cuda":
        return _count_operators(work)
    _traced(work, 1, device)  # the first profile of a process misses some events
    return _from_trace(_traced(work, runs, device), runs)


class _Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.seen[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def _count_operators(work: Callable[[], object]) -> Counts:
    with _Operators() as mode:
        work()
    names = mode.seen
    return Counts(
        kernels=names.total(),
        copies=sum(names[name] for name in _CPU_COPIES),
        syncs=sum(names[name] for name in _CPU_SYNCS),
        waits=0,
        names=dict(names.most_common()),
    )


def _traced(work: Callable[[], object], runs: int, device: torch.device) -> list[dict[str, Any]]:
    torch.cuda.synchronize(device)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        with record_function(_RANGE):
            for _ in range(runs):
                work()
        torch.cuda.synchronize(device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return events


def _from_trace(events: Sequence[Mapping[str, Any]], runs: int) -> Counts:
    of_kind: dict[str, list[Mapping[str, Any]]] = {}
    for event in events:
        if event.get("ph") == "X":
            of_kind.setdefault(str(event.get("cat", "")).lower(), []).append(event)
    (counted,) = (e for e in of_kind.get("user_annotation", []) if e["name"] == _RANGE)
    begin, end = counted["ts"], counted["ts"] + counted["dur"]
    # Our own synchronisation after the work, and the profiler's, are not counted.
    calls = [e for kind in ("cuda_runtime", "cuda_driver") for e in of_kind.get(kind, []) if begin <= e["ts"] <= end]
    names = Counter(str(e["name"]) for e in of_kind.get("kernel", []))
    copies = len(of_kind.get("gpu_memcpy", [])) + len(of_kind.get("gpu_memset", []))
    return Counts(
        kernels=names.total() / runs,
        copies=copies / runs,
        syncs=sum(e["name"] in _SYNCS for e in calls) / runs,
        waits=sum(e["name"] in _WAITS for e in calls) / runs,
        names={name: n / runs for name, n in names.most_common()},
    )
