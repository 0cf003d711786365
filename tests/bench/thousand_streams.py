"""Is the client the bottleneck? A thousand real-time streams of silence, run by hand on a quiet machine.

    python tests/bench/thousand_streams.py --streams 1000 --seconds 10

Prints the client's timing error as it measures it itself, and as it truly was: the time of each read less the time at
which the stub server sent the chunk. Exits with 1 if either is over 2 ms at p99, or if a stream failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from sonant.bench.client.load import Load
from sonant.bench.client.load_level import CLIENT_ERROR_S
from sonant.bench.client.prompts import Prompt
from sonant.bench.client.target import Target
from sonant.bench.client.worker import allow_files, loop_factory
from sonant.bench.client.worker_pool import Measured, WorkerPool

STUB = Path(__file__).with_name("stub_server.py")


def measure(streams: int, seconds: float, processes: int) -> tuple[Measured, list[float]]:
    """Return what the client measured, and how late each read truly was."""
    prompts = [Prompt(f"stream {i}", f"stream {i}") for i in range(streams)]
    allow_files(streams + 64)  # the stub server inherits this limit
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "sent.json"
        command = [sys.executable, str(STUB), "--seconds", str(seconds), "--log", str(log)]
        stub = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert stub.stdout is not None
            url = stub.stdout.readline().strip()
            with WorkerPool(Target(url), prompts, processes=processes) as pool:
                measured = pool.run(Load(streams, concurrency=streams, ramp_s=2.0))
        finally:
            stub.terminate()
            stub.wait()
        sent_s = json.loads(log.read_text())
    late_s = []
    for sample in measured.samples:
        sent = sent_s.get(sample.prompt, [])
        if len(sent) == len(sample.arrivals_s):  # otherwise two chunks came in one read
            late_s += [sample.started_s + a - s for a, s in zip(sample.arrivals_s, sent, strict=True)]
    return measured, late_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    measured, late_s = measure(options.streams, options.seconds, options.processes)
    ok = sum(s.ok for s in measured.samples)
    loop = "asyncio" if loop_factory() is None else "uvloop"
    print(f"{ok}/{options.streams} streams of {options.seconds:g} s, {options.processes} processes, {loop}")
    print(f"load average of the machine {os.getloadavg()[0]:.1f}, cores {len(os.sched_getaffinity(0))}")
    p99s = []
    for name, values in (("by the metronome", measured.errors_s), ("against the stub", late_s)):
        p50, p99, p999 = 1e3 * np.percentile(values, [50, 99, 99.9])
        print(f"{name}: p50 {p50:.3f}, p99 {p99:.3f}, p99.9 {p999:.3f} ms, {len(values):,} stamps")
        p99s.append(p99 / 1e3)
    return int(ok < options.streams or max(p99s) > CLIENT_ERROR_S)


if __name__ == "__main__":
    sys.exit(main())
