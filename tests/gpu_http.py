"""What users get over HTTP from a server on this GPU, measured by our own client:

    python tests/gpu_http.py --folder DIR --out RESULTS [--workers N] [--poisson 150:60,200:30] [--capacity 1024:2048]

It starts a server with default options and loads it as soon as it is ready: with 64 listeners at once in its first
seconds, then with 1, 64, 128 and 256 at once, repeatedly, and with Poisson arrivals (150 requests of ten seconds a
second are 1,500 listeners); with --capacity also with as many listeners as it can hold. Each hears 125 frames of a text
that takes about as long to say: one of twelve or, in "own-texts", one that was never said before, so that all of its
prompt is prefilled. `tests/gpu_start.py` measures a start with empty kernel caches.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

FRAMES = 125
LEVELS = (1, 64, 128, 256)
PORT = 8771
URL = f"http://127.0.0.1:{PORT}"


def bench(out: Path, name: str, *options: str, kind: str = "serve") -> Path:
    """Run `sonant bench serve`, or another kind of bench, which prints its table → its report's path."""
    path = out / f"{name}.json"
    command = [sys.executable, "-m", "sonant.cli.main", "bench", kind, "--base-url", URL, "--voice", "alloy"]
    command += ["--extra-body", json.dumps({"max_frames": FRAMES}), "--length", "medium", "--warmups", "0", "--quiet"]
    print(f"== {name}", flush=True)
    subprocess.run([*command, *options, "--out", str(path)], check=False)
    return path


def start(folder: str, workers: int | None, log: Path) -> tuple[subprocess.Popen[bytes], float]:
    """Start a server and wait until it is ready → its process, and the seconds that it took."""
    command = [sys.executable, "-m", "sonant.cli.main", "serve", folder, "--port", str(PORT), "--device", "cuda"]
    command += [] if workers is None else ["--workers", str(workers)]
    server = subprocess.Popen(command, stderr=log.open("wb"))
    return server, wait_until_ready(server, log)


def wait_until_ready(server: subprocess.Popen[bytes], log: Path) -> float:
    """Wait until the server is ready → the seconds that it took."""
    began_s = time.monotonic()
    while True:
        if server.poll() is not None:
            raise SystemExit(f"the server ended with {server.returncode}; see {log}")
        try:
            with urllib.request.urlopen(f"{URL}/ready", timeout=5):
                return time.monotonic() - began_s
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--poisson", default="150:60,200:30", help="requests a second, and for how many seconds")
    parser.add_argument("--capacity", metavar="N:N", help="listeners to begin with, and at most (default: not asked)")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    server, ready_s = start(args.folder, args.workers, args.out / "server.log")
    print(f"ready after {ready_s:.1f} s; {len(os.sched_getaffinity(0))} cores", flush=True)
    try:
        bench(args.out, "first", "--concurrency", "64", "--requests", "256", "--processes", "4")
        for level in LEVELS:
            count, clients = str(max(32, 6 * level)), str(min(6, 1 + level // 50))
            options = ("--concurrency", str(level), "--requests", count, "--processes", clients)
            bench(args.out, f"at-once-{level}", *options)
            if level > 1:
                bench(args.out, f"own-texts-{level}", *options, "--wordings", "100", "--seed", str(level))
        for rate, seconds in (map(float, load.split(":")) for load in args.poisson.split(",")):
            count = str(int(rate * seconds))
            bench(args.out, f"poisson-{rate:g}", "--rate", f"{rate:g}", "--requests", count, "--processes", "6")
        if args.capacity:
            first, most = args.capacity.split(":")
            # A ramp as long as a stream: with a shorter one all would begin again at once when the first streams end.
            options = ("--start", first, "--most", most, "--ttfp", "80", "--ramp", "10", "--processes", "6")
            bench(args.out, "capacity", *options, kind="capacity")
        with urllib.request.urlopen(f"{URL}/v1/engine/stats") as stats:
            print(json.dumps(json.load(stats)["recent"]))
    finally:
        server.send_signal(signal.SIGTERM)
        print("exit code", server.wait(60))


if __name__ == "__main__":
    main()
