"""Writes a trace of a given size and reads it, to measure the memory and the time that this takes.

    python tests/profiling/large.py --gigabytes 2 --folder DIR

The events are those of an engine under torch.profiler with stacks: mostly Python functions and operators.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from pathlib import Path

from sonant.profiling.analysis import analyze
from sonant.profiling.read import read_trace
from sonant.profiling.report import make_report

_PYTHON = 30  # frames and operators around each kernel
_KERNELS = 40  # in each step


def write(path: Path, size: int) -> int:
    """Write alike steps until the file has `size` bytes → their number."""
    steps, written, number = 0, 0, 1
    with path.open("w", encoding="utf-8") as file:
        written += file.write(
            '{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],\n"traceEvents": [\n'
        )
        while written < size:
            start, lines = 2000.0 * steps, []
            lines.append(
                _event("user_annotation", "sonant.step rows=1 bucket=1 prefill=0 codec=1", start, 1900.0, 9, {})
            )
            for kernel in range(_KERNELS):
                at = start + 40.0 * kernel
                for depth in range(_PYTHON):
                    cat, name = ("python_function", f"sonant/layers/layer_{depth}.py({kernel}): forward")
                    if depth % 3 == 2:
                        cat, name = "cpu_op", f"aten::op_{kernel}_{depth}"
                    args = {"External id": number, "Record function id": 0, "Ev Idx": number, "Python id": number}
                    lines.append(_event(cat, name, at + 0.1 * depth, 30.0 - 0.5 * depth, 9, args))
                    number += 1
                args = {"correlation": number, "cbid": 211}
                lines.append(_event("cuda_runtime", "cudaLaunchKernel", at + 5, 4.0, 9, args))
                args = {"correlation": number, "stream": 7, "device": 0, "External id": number - 1, "grid": [132, 1, 1]}
                lines.append(_event("kernel", f"nvjet_tst_{kernel % 8}", at + 12, 27.5, 7, args))
            written += file.write(",\n".join(lines) + ",\n")
            steps += 1
        file.write('{"ph": "M", "name": "thread_name", "pid": 1, "tid": 9, "args": {"name": "step"}}\n]}\n')
    return steps


def _event(cat: str, name: str, ts: float, dur: float, tid: int, args: dict[str, object]) -> str:
    event = {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": round(ts, 3), "dur": dur, "args": args}
    return json.dumps(event)


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--folder", type=Path, required=True)
    args = parser.parse_args()
    path = args.folder / "large.json"
    steps = write(path, int(args.gigabytes * 1e9))
    before, start = peak_mb(), time.perf_counter()
    trace = read_trace(path)
    read_s, after_read = time.perf_counter() - start, peak_mb()
    report = make_report(analyze(trace), "large")
    events = sum(len(e) for e in (trace.device, trace.runtime, trace.ops, trace.python, trace.ranges))
    figures = {
        "file_mb": path.stat().st_size / 1e6, "events": events, "steps": steps, "steady": len(report.step_us),
        "read_s": read_s, "look_s": time.perf_counter() - start - read_s, "before_mb": before,
        "after_read_mb": after_read, "peak_mb": peak_mb(),
    }  # fmt: skip
    json.dump(figures, sys.stdout)
    path.unlink()


if __name__ == "__main__":
    main()
