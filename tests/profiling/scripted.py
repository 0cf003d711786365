"""Simulates an engine on an imaginary GPU and writes what a profiler would: Kineto's JSON, or Nsight's SQLite.

A host thread makes calls that take time; a device runs what it was given, in order on each stream, once the call that
launched it has returned. Gaps, waits and overlaps arise as on a real machine. Layouts follow libkineto's
output_json.cpp and CuptiActivity.cpp, and the documented schema of nsys exports.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PID, THREAD, STREAM, COPY_STREAM = 4242, 77, 7, 13
GEMM = "nvjet_tst_64x8_64x16_4x1_v_bz_TNT"
ATTENTION = "_attention"
SAMPLE = "_sample"
FILL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >"
    "(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)"
)
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
    "(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
_LAUNCH_US, _LATENCY_US, _NODE_US = 4.0, 1.5, 0.2
_MEMORY = {"Pageable": 0, "Pinned": 1, "Device": 2}
_COPIES = {"HtoD": 1, "DtoH": 2, "DtoD": 8}


@dataclass
class Machine:
    """A host thread and a device. Times are in microseconds since the start."""

    thread: int = THREAD
    host: float = 1000.0
    free: dict[int, float] = field(default_factory=dict)  # when each stream has finished its work
    events: list[dict[str, Any]] = field(default_factory=list)
    last_id: int = 0

    def _note(self, cat: str, name: str, start: float, end: float, **args: Any) -> None:
        self.events.append(
            {"cat": cat, "name": name, "ts": start, "dur": end - start, "tid": self.thread, "args": args}
        )

    def _id(self) -> int:
        self.last_id += 1
        return self.last_id

    def call(self, name: str, us: float, correlation: int | None = None, cat: str = "cuda_runtime") -> int:
        correlation = correlation or self._id()
        self._note(cat, name, self.host, self.host + us, cbid=211, correlation=correlation)
        self.host += us
        return correlation

    def _run(self, cat: str, name: str, us: float, stream: int, correlation: int, gap: float, **args: Any) -> None:
        start = max(self.free.get(stream, 0.0) + gap, self.host + _LATENCY_US)
        self.free[stream] = start + us
        args = {"device": 0, "context": 1, "stream": stream, "correlation": correlation, **args}
        self._note(cat, name, start, start + us, **args)

    @contextmanager
    def python(self, name: str) -> Iterator[None]:
        start = self.host
        self.host += 0.1
        yield
        self.host += 0.1
        self._note("python_function", name, start, self.host, **{"Python id": self._id()})

    @contextmanager
    def op(self, name: str, dims: list[list[int]] | None = None) -> Iterator[int]:
        start, number = self.host, self._id()
        self.host += 2.0
        yield number
        shapes = {"Input Dims": dims, "Input type": ["c10::BFloat16"] * len(dims)} if dims else {}
        self.host += 1.0
        self._note("cpu_op", name, start, self.host, **{"External id": number, **shapes})

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        start = self.host
        yield
        self._note("user_annotation", name, start, self.host, **{"External id": self._id()})

    def kernel(self, name: str, us: float, stream: int = STREAM, op: str | None = None, dims: Any = None) -> None:
        with self.op(op or "aten::op", dims) as number:
            correlation = self.call("cudaLaunchKernel", _LAUNCH_US)
            grid = {"grid": [132, 1, 1], "block": [128, 1, 1], "External id": number}
            self._run("kernel", name, us, stream, correlation, _NODE_US, **grid)

    def graph(
        self, kernels: list[tuple[str, float]], stream: int = STREAM, graph_id: int = 5, early: float = 0.0
    ) -> None:
        """`early`: how long before its predecessor's end a kernel starts, to wait for it (dependent launch)."""
        correlation = self.call("cudaGraphLaunch", 12.0)
        for node, (name, us) in enumerate(kernels):
            ids = {"graph id": graph_id, "graph node id": (graph_id << 32) + node}
            self._run("kernel", name, us, stream, correlation, -early if early else _NODE_US, **ids)

    def copy(self, kind: str, source: str, target: str, size: int, us: float, stream: int = STREAM) -> None:
        correlation = self.call("cudaMemcpyAsync", 5.0)
        self._run("gpu_memcpy", f"Memcpy {kind} ({source} -> {target})", us, stream, correlation, _NODE_US, bytes=size)

    def memset(self, size: int, us: float) -> None:
        correlation = self.call("cudaMemsetAsync", _LAUNCH_US)
        self._run("gpu_memset", "Memset (Device)", us, STREAM, correlation, _NODE_US, bytes=size)

    def wait(self, name: str = "cudaStreamSynchronize", stream: int = STREAM, until: float | None = None) -> None:
        """Wait until a stream has finished, or only until a time: that of an event that was recorded earlier."""
        done = self.free.get(stream, 0.0) if until is None else until
        self.call(name, max(1.0, done + 3.0 - self.host))

    def memory(self, size: int) -> None:
        args = {"Device Type": 1, "Device Id": 0, "Addr": 1, "Bytes": size, "Total Allocated": size}
        self.events.append(
            {"cat": "cpu_instant_event", "name": "[memory]", "ts": self.host, "tid": self.thread, "args": args}
        )


def _kineto_events(event: dict[str, Any], torch: str) -> Iterator[dict[str, Any]]:
    """An event and, after a launch, the flow arrow to its kernel."""
    instant = event["cat"] == "cpu_instant_event"
    on_device = event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")
    args = dict(event["args"])
    if torch == "2.11":
        args = {key: value for key, value in args.items() if not key.startswith("graph ")}
    where = {"pid": 0, "tid": args["stream"]} if on_device else {"pid": PID, "tid": event["tid"]}
    time = {"ts": round(event["ts"], 3)} | ({"s": "t"} if instant else {"dur": round(event["dur"], 3)})
    yield {"ph": "i" if instant else "X", "cat": event["cat"], "name": event["name"], **where, **time, "args": args}
    if event["name"] == "cudaLaunchKernel":
        flow = {"ph": "s", "id": args["correlation"], "pid": PID, "tid": event["tid"], "ts": event["ts"]}
        yield {**flow, "cat": "ac2g", "name": "ac2g"}


def write_kineto(machine: Machine, path: Path, *, torch: str = "2.13", gpu: str = "NVIDIA H200") -> Path:
    """Write it as torch 2.13 does; 2.11 has no graph ids. Flow arrows and metadata come between, as in real traces."""
    head = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": gpu, "totalGlobalMem": 150754820096, "numSms": 132}] if gpu else [],
        "cuda_runtime_version": 12080,
        "with_stack": 1,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 1790857026000000000,
    }
    written = [shown for event in machine.events for shown in _kineto_events(event, torch)]
    names = {
        "name": "thread_name",
        "ph": "M",
        "ts": 0,
        "pid": PID,
        "tid": machine.thread,
        "args": {"name": "thread 77 (sonant-step)"},
    }
    span = {
        "ph": "X",
        "cat": "Trace",
        "ts": 0.0,
        "dur": 1.0,
        "pid": "Spans",
        "tid": "PyTorch Profiler",
        "name": "PyTorch Profiler (0)",
    }
    text = json.dumps({**head, "traceEvents": [names, *written, span], "traceName": path.name})
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


_SCHEMA = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, contextId INT, streamId INT,
  correlationId INT, globalPid INT, demangledName INT, shortName INT, mangledName INT, gridX INT,
  graphNodeId INT);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INT, end INT, deviceId INT, contextId INT, streamId INT,
  correlationId INT, globalPid INT, bytes INT, copyKind INT, srcKind INT, dstKind INT, graphNodeId INT);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INT, end INT, deviceId INT, contextId INT, streamId INT,
  correlationId INT, globalPid INT, value INT, bytes INT, graphNodeId INT, memKind INT);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, eventClass INT, globalTid INT, correlationId INT,
  nameId INT, returnValue INT, callchainId INT);
CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INT, end INT, deviceId INT, contextId INT, streamId INT,
  correlationId INT, globalPid INT, graphId INT, graphExecId INT);
CREATE TABLE NVTX_EVENTS (start INT, end INT, eventType INT, rangeId INT, text TEXT, globalTid INT, textId INT);
CREATE TABLE ENUM_CUDA_MEM_KIND (id INTEGER PRIMARY KEY, name TEXT, label TEXT);
CREATE TABLE TARGET_INFO_GPU (id INT, name TEXT, memoryBandwidth INT);
CREATE TABLE ThreadNames (nameId INT, priority INT, globalTid INT);
"""


class _Database:
    def __init__(self, path: Path, thread: int) -> None:
        self.db, self.thread = sqlite3.connect(path), (PID << 24) | thread
        self.db.executescript(_SCHEMA)
        self.numbers: dict[str, int] = {}

    def insert(self, table: str, *row: Any) -> None:
        self.db.execute(f"INSERT INTO {table} VALUES ({','.join('?' * len(row))})", row)

    def number(self, text: str) -> int:
        if text not in self.numbers:
            self.numbers[text] = len(self.numbers) + 1
            self.insert("StringIds", self.numbers[text], text)
        return self.numbers[text]

    def event(self, e: dict[str, Any]) -> None:
        start, end, a = round(1000 * e["ts"]), round(1000 * (e["ts"] + e.get("dur", 0))), e["args"]
        head = (start, end, 0, 1, a.get("stream"), a.get("correlation"), PID << 24)
        if e["cat"] == "kernel":
            name, brief = self.number(e["name"]), self.number(e["name"][:20])
            self.insert("CUPTI_ACTIVITY_KIND_KERNEL", *head, name, brief, name, 132, a.get("graph node id"))
        elif e["cat"] == "gpu_memcpy":
            _, kind, ends = e["name"].split(" ", 2)
            source, target = (_MEMORY[place] for place in ends.strip("()").split(" -> "))
            self.insert("CUPTI_ACTIVITY_KIND_MEMCPY", *head, a["bytes"], _COPIES[kind], source, target, None)
        elif e["cat"] == "gpu_memset":
            self.insert("CUPTI_ACTIVITY_KIND_MEMSET", *head, 0, a["bytes"], None, 2)
        elif e["cat"] == "cuda_runtime":
            name = self.number(e["name"] + "_v7000")
            self.insert("CUPTI_ACTIVITY_KIND_RUNTIME", start, end, 0, self.thread, a["correlation"], name, 0, None)
        elif e["cat"] == "user_annotation":
            self.insert("NVTX_EVENTS", start, end, 59, None, None, self.thread, self.number(e["name"]))

    def facts(self) -> None:
        for kind, number in _MEMORY.items():
            self.insert("ENUM_CUDA_MEM_KIND", number, f"CUDA_MEMOPR_MEMORY_KIND_{kind.upper()}", kind)
        self.insert("TARGET_INFO_GPU", 0, "NVIDIA H200", 4_800_000_000_000)
        self.insert("ThreadNames", self.number("sonant-step"), 0, self.thread)


def write_nsight(machine: Machine, path: Path, *, whole_graphs: bool = False) -> Path:
    """`whole_graphs`: write one row for all kernels of a launch, as nsys does without --cuda-graph-trace=node."""
    database = _Database(path, machine.thread)
    graphs: dict[int, list[int]] = {}
    for e in machine.events:
        if whole_graphs and "graph id" in e["args"]:
            times = (round(1000 * e["ts"]), round(1000 * (e["ts"] + e["dur"])))
            graphs.setdefault(e["args"]["correlation"], []).extend(times)
        else:
            database.event(e)
    for correlation, times in graphs.items():
        head = (min(times), max(times), 0, 1, STREAM, correlation, PID << 24)
        database.insert("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", *head, 5, 6)
    database.facts()
    database.db.commit()
    database.db.close()
    return path
