"""A trace in memory: one column of numbers for each fact, so that ten million events fit where their text would not.

Readers fill `EventColumns`, an event at a time; everything else works on sorted, frozen `Events`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from sonant.errors import SonantError

Ints = npt.NDArray[np.int64]
_FACTS = ("name", "start", "end", "track", "correlation", "external", "size", "device")
_SPAN = 4  # a Python function is a name, a start, an end and a thread


class TraceError(SonantError):
    """The file is not a trace that can be read, or holds nothing to analyze."""


class Kind(IntEnum):
    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    RUNTIME = 3  # a call of the CUDA runtime or driver
    OP = 4  # a torch operator on the host
    PYTHON = 5  # a Python function
    RANGE = 6  # a named range: record_function, NVTX
    MEMORY = 7  # the allocator gave memory (size over 0) or took it back (below 0)


ON_DEVICE = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
OnRead = Callable[[float], None]  # gets the share of the file that has been read


class Names:
    """Every name once. Events hold its number."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        found = self._numbers.get(text)
        if found is None:
            found = self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return found


@dataclass(frozen=True)
class Events:
    """Sorted by start. Times are nanoseconds; `track` is a stream on the device and a thread on the host."""

    name: Ints
    start: Ints
    end: Ints
    track: Ints
    correlation: Ints  # joins a call and what it put on the device; 0 for none
    external: Ints  # joins what is on the device and the operator that launched it; 0 for none
    size: Ints  # bytes that were copied, set or allocated; for an operator those of its input tensors
    device: Ints
    kind: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.start)

    @property
    def duration(self) -> Ints:
        return self.end - self.start

    def pick(self, which: npt.NDArray[Any] | slice) -> Events:
        return Events(**{fact: getattr(self, fact)[which] for fact in (*_FACTS, "kind")})


class EventColumns:
    """Events of some kinds while they are read. Only the first `facts` facts are kept; the rest are zeros."""

    def __init__(self, facts: int = len(_FACTS)) -> None:
        self._facts = {fact: array("q") for fact in _FACTS[:facts]}
        self._kind = array("B")
        self._append = [column.append for column in self._facts.values()]

    def add(self, kind: Kind, *facts: int) -> None:
        """`facts` in the order of `Events`: name, start, end, track, correlation, external, size, device."""
        self._kind.append(kind)
        for append, value in zip(self._append, facts, strict=False):
            append(value)

    def sorted(self) -> Events:
        """The events sorted by start. Columns are freed one by one, so that memory never holds two copies of all."""
        start = np.frombuffer(self._facts["start"], np.int64) if self._kind else np.zeros(0, np.int64)
        order = np.argsort(start, kind="stable")
        del start
        done: dict[str, Any] = {}
        for fact in _FACTS:
            column = self._facts.pop(fact, None)
            # Zeros that are never written take no memory.
            done[fact] = np.frombuffer(column, np.int64)[order] if column else np.zeros(len(order), np.int64)
        kind = np.frombuffer(self._kind, np.uint8)[order] if self._kind else np.zeros(0, np.uint8)
        return Events(kind=kind, **done)


@dataclass(frozen=True)
class TracedGpu:
    name: str
    bandwidth: float | None = None  # peak, in bytes a second


@dataclass(frozen=True)
class Trace:
    """The contents of a file. `device` holds kernels, copies and memsets."""

    names: list[str]
    device: Events
    runtime: Events
    ops: Events
    python: Events
    ranges: Events
    memory: Events
    threads: dict[int, str] = field(default_factory=dict)
    gpu: TracedGpu | None = None
    made_by: str = ""
    stand_in: bool = False  # whether operators on the CPU stand in for kernels, as there is no GPU in the trace
    remarks: tuple[str, ...] = ()

    def name_of(self, events: Events, index: int) -> str:
        return self.names[int(events.name[index])]


class TraceBuilder:
    def __init__(self) -> None:
        self.names = Names()
        self.threads: dict[int, str] = {}
        self.gpu: TracedGpu | None = None
        self.made_by = ""
        self.remarks: list[str] = []
        self._device, self._runtime, self._ops = EventColumns(), EventColumns(), EventColumns()
        self._python, self._ranges, self._memory = EventColumns(_SPAN), EventColumns(_SPAN), EventColumns()
        self.of = {
            Kind.KERNEL: self._device,
            Kind.MEMCPY: self._device,
            Kind.MEMSET: self._device,
            Kind.RUNTIME: self._runtime,
            Kind.OP: self._ops,
            Kind.PYTHON: self._python,
            Kind.RANGE: self._ranges,
            Kind.MEMORY: self._memory,
        }

    def build(self, file: object) -> Trace:
        columns = {
            "device": self._device.sorted(),
            "runtime": self._runtime.sorted(),
            "ops": self._ops.sorted(),
            "python": self._python.sorted(),
            "ranges": self._ranges.sorted(),
            "memory": self._memory.sorted(),
        }
        stand_in = not len(columns["device"])
        if stand_in:
            columns["device"] = working(columns["ops"])
        if not len(columns["device"]):
            raise TraceError(
                f"{file} holds neither kernels nor operators: record with ProfilerActivity.CPU and .CUDA "
                "(nsys: --trace=cuda,nvtx), while the engine is at work"
            )
        if not columns["device"].duration.any():
            raise TraceError(
                f"{file} holds {len(columns['device']):,} events of the device, and none has a time: export a "
                "recording of torch.profiler before the next one begins, and record again"
            )
        main = _busiest_device(columns["device"])
        if main is not None:
            others = columns["device"].device != main
            if others.any():
                self.remarks.append(f"work on other devices than {main} was left out")
                columns["device"] = columns["device"].pick(~others)
        return Trace(
            names=self.names.texts,
            threads=self.threads,
            gpu=self.gpu,
            made_by=self.made_by,
            stand_in=stand_in,
            remarks=tuple(self.remarks),
            **columns,
        )


def _busiest_device(events: Events) -> int | None:
    devices = np.unique(events.device)
    if len(devices) < 2:
        return None
    return int(max(devices, key=lambda d: int(events.duration[events.device == d].sum())))


def working(ops: Events) -> Events:
    """The outermost operators whose time is mostly their own: what the CPU's time goes to.

    `aten::linear` only calls `aten::addmm`, which computes, though it makes some small calls itself.
    """
    keep: list[int] = []
    for _, mine in tracks(ops):
        order = mine[np.lexsort((-ops.end[mine], ops.start[mine]))]
        starts, ends = ops.start[order].tolist(), ops.end[order].tolist()
        own = [end - start for start, end in zip(starts, ends, strict=True)]
        open_ops: list[int] = []
        parents: list[int] = []
        for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
            while open_ops and ends[open_ops[-1]] <= start:
                open_ops.pop()
            parents.append(open_ops[-1] if open_ops else -1)
            if open_ops:
                own[open_ops[-1]] -= end - start
            open_ops.append(i)
        covered = [False] * len(order)
        for i, parent in enumerate(parents):
            covered[i] = parent >= 0 and covered[parent]
            if not covered[i] and 2 * own[i] >= ends[i] - starts[i]:
                keep.append(int(order[i]))
                covered[i] = True
    return ops.pick(np.array(sorted(keep), np.int64))


def tracks(events: Events) -> Iterator[tuple[int, Ints]]:
    """Each thread or stream with the indices of its events, in order."""
    for track in np.unique(events.track):
        yield int(track), np.flatnonzero(events.track == track)
