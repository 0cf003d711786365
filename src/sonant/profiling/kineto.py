"""Reads what torch.profiler writes: Kineto's Chrome JSON, plain or gzipped.

Seen from torch 1.13 to 2.13: categories in lower case, times in microseconds with three decimals, kernels of a CUDA
graph with the correlation of their one cudaGraphLaunch, and with "graph id" and "graph node id" if CUDA 12 tells them.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from sonant.profiling.events import ON_DEVICE, Kind, OnRead, Trace, TraceBuilder, TracedGpu, TraceError
from sonant.profiling.json_stream import JsonStream

_KINDS = {
    "kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.MEMCPY,
    "gpu_memset": Kind.MEMSET,
    "cuda_runtime": Kind.RUNTIME,
    "cuda_driver": Kind.RUNTIME,
    "cpu_op": Kind.OP,
    "python_function": Kind.PYTHON,
    "user_annotation": Kind.RANGE,
}
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_ITEM_BYTES = {
    "float": 4, "double": 8, "int": 4, "long int": 8, "long": 8, "c10::BFloat16": 2, "c10::Half": 2, "bool": 1,
    "unsigned char": 1, "signed char": 1, "short": 2, "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1,
}  # fmt: skip


def read_kineto(path: Path, on_read: OnRead = lambda share: None) -> Trace:
    size = max(1, path.stat().st_size)
    builder = TraceBuilder()
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            file = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if zipped else raw
            _read(JsonStream(file, path, lambda: on_read(min(1.0, raw.tell() / size))), builder, path)
    except (EOFError, zlib.error, gzip.BadGzipFile) as e:
        raise TraceError(f"{path} is a damaged or cut gzip file ({e}); record or copy it again") from e
    except OSError as e:
        raise TraceError(f"{path} cannot be read: {e.strerror}") from e
    return builder.build(path)


def _read(stream: JsonStream, builder: TraceBuilder, path: Path) -> None:
    first = stream.peek()
    if not first:
        raise TraceError(f"{path} is empty")
    if first not in "[{":
        raise TraceError(f"{path} is no trace: it begins with {first!r}, not with JSON or an SQLite header")
    add = _adder(builder)
    found = first == "["
    if found:
        for event in stream.items():
            add(event)
    else:
        header: dict[str, Any] = {}
        for key in stream.members():
            if key == "traceEvents":
                found = True
                for event in stream.items():
                    add(event)
            else:
                header[key] = stream.value()
        _read_header(header, builder)
    if not found:
        raise TraceError(f"{path} is JSON, but no trace: it has no traceEvents")


def _read_header(header: Mapping[str, Any], builder: TraceBuilder) -> None:
    devices = header.get("deviceProperties")
    if isinstance(devices, list) and devices and isinstance(devices[0], dict):
        builder.gpu = TracedGpu(str(devices[0].get("name", "unknown")))
    versions = [f"{key} {header[key]}" for key in ("pytorch_version", "cuda_runtime_version") if key in header]
    builder.made_by = ", ".join(["torch.profiler", *versions])


def _adder(builder: TraceBuilder) -> Callable[[Any], None]:
    number = builder.names.number
    nothing: dict[str, Any] = {}

    def add(event: Any) -> None:
        if not isinstance(event, dict):
            raise TraceError(f"a trace event is {type(event).__name__} and not an object: this is no Chrome trace")
        try:
            kind = _KINDS.get(event.get("cat", "").lower())
            if kind is None or event.get("ph") != "X":
                _add_other(builder, event)
                return
            args = event.get("args") or nothing
            start = round(1000 * float(event["ts"]))
            end = start + max(0, round(1000 * float(event.get("dur", 0))))
            correlation, external = int(args.get("correlation", 0)), int(args.get("External id", 0))
            if kind in ON_DEVICE:
                track, device = int(args.get("stream") or event.get("tid") or 0), int(args.get("device", 0))
                size = int(args.get("bytes", 0))
            else:
                track, device = int(event.get("tid") or 0), 0
                size = _input_bytes(args) if kind is Kind.OP and "Input Dims" in args else 0
            text = str(event["name"])
            # A built-in method is named with its object's address, which would make one name for each object.
            name = number(_ADDRESS.sub("", text) if kind is Kind.PYTHON and " at 0x" in text else text)
            builder.of[kind].add(kind, name, start, end, track, correlation, external, size, device)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as e:
            raise TraceError(f"a trace event has a wrong or missing field ({e!r}): {str(event)[:200]}") from e

    return add


def _add_other(builder: TraceBuilder, event: Mapping[str, Any]) -> None:
    """Adds names of threads and what the allocator did; the rest (flows, spans, counters) tells nothing new."""
    args = event.get("args") or {}
    if event.get("name") == "[memory]" and "Bytes" in args:
        on_gpu = args.get("Device Type") == 1
        at, size = round(1000 * float(event["ts"])), int(args["Bytes"])
        tid, device = int(event.get("tid", 0)), int(args.get("Device Id", 0)) if on_gpu else -1
        builder.of[Kind.MEMORY].add(Kind.MEMORY, builder.names.number("[memory]"), at, at, tid, 0, 0, size, device)
    elif event.get("name") == "thread_name" and isinstance(event.get("tid"), int):
        builder.threads[event["tid"]] = str(args.get("name", ""))


def _input_bytes(args: Mapping[str, Any]) -> int:
    """Bytes of an operator's input tensors, from the shapes that record_shapes records."""
    total = 0
    for dims, kind in zip(args["Input Dims"], args.get("Input type", ()), strict=False):
        item = _ITEM_BYTES.get(kind) if isinstance(kind, str) else None
        if item and isinstance(dims, list) and dims and all(isinstance(d, int) for d in dims):
            count = 1
            for dim in dims:
                count *= dim
            total += count * item
    return total
