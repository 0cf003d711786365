"""The time from `sonant serve` to `/ready` on a GPU: with empty kernel caches, then with what that start left in them.

    python tests/gpu_start.py model                       # default options, as an operator starts it
    python tests/gpu_start.py model --again 3 -- --max-rows 256 --compile-workers 0   # options of `sonant serve`
    python tests/gpu_start.py model --against build/before/src   # also the same starts of other sources

Each start prints the server's log as it comes, which includes where its time went and which kernels were compiled only
when they were first needed; then when `/ready` was answered over HTTP, and when a first request right after that had
its first and its last sound. At the end comes a table of all starts, phase by phase. "around it" is the time that the
engine's process does not count: until it is started, and from its last phase to the answer.

Every cache is empty at first: Triton's, the driver's, and ours (machine code of CUDA C++, notes of starts, the user's
tuned tiles). Python's sources are compiled beforehand, as pip does when it installs a wheel, and files that were just
written or read are in memory: a machine that has just booted takes longer.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).resolve().parents[1] / "src"
READY_LIMIT_S = 300.0
POLL_S = 0.02
LATE = "when it was met"
READY, PAGE = "the engine is ready after", "the page is at"
PHASE = re.compile(r"([a-z][a-z -]*[a-z]) (\d+\.\d+)(?:,|$)")


class Server:
    def __init__(self, folder: str, options: list[str], caches: Path, sources: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        command = [sys.executable, "-m", "sonant.cli.main", "serve", folder, "--port", self.url.rpartition(":")[2]]
        places = {"TRITON_CACHE_DIR": "triton", "CUDA_CACHE_PATH": "driver", "XDG_CACHE_HOME": "ours"}
        environment = os.environ | {name: str(caches / place) for name, place in places.items()}
        others = os.environ.get("PYTHONPATH")
        environment |= {"PYTHONPATH": sources if others is None else f"{sources}{os.pathsep}{others}"}
        self.began_s = time.monotonic()
        self.process = subprocess.Popen([*command, *options], env=environment, stderr=subprocess.PIPE, text=True)
        self.said: list[tuple[float, str]] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append((time.monotonic() - self.began_s, line.rstrip()))
            print(f"{self.said[-1][0]:7.2f} s  {self.said[-1][1]}", flush=True)

    def wait_until_ready(self) -> float:
        while time.monotonic() - self.began_s < READY_LIMIT_S:
            if self.process.poll() is not None:
                raise SystemExit("the server ended:\n" + "\n".join(line for _, line in self.said))
            try:
                with urllib.request.urlopen(f"{self.url}/ready", timeout=2):
                    return time.monotonic() - self.began_s
            except (urllib.error.URLError, OSError):
                time.sleep(POLL_S)
        raise SystemExit(f"not ready in {READY_LIMIT_S:.0f} s:\n" + "\n".join(line for _, line in self.said))

    def first_request(self) -> tuple[float, float]:
        """Send a request → milliseconds to the first sound, and to the last."""
        body = {"input": "The first listener has come.", "response_format": "pcm", "max_frames": 50, "seed": 1}
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{self.url}/v1/audio/speech", json.dumps(body).encode(), headers)
        began_s = time.monotonic()
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read(1)
            first_s = time.monotonic()
            answer.read()
        return 1e3 * (first_s - began_s), 1e3 * (time.monotonic() - began_s)

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)


def start(name: str, folder: str, options: list[str], caches: Path, sources: str) -> dict[str, Any]:
    server = Server(folder, options, caches, sources)
    try:
        ready_s = server.wait_until_ready()
        first_ms, last_ms = server.first_request()
        time.sleep(0.5)  # for lines of the log that are still to come
    finally:
        server.end()
    lines = [line for _, line in server.said]
    late = [line for line in lines if LATE in line]
    print(f"\n== {name}: ready after {ready_s:.2f} s; then first sound {first_ms:.0f} ms, all of it {last_ms:.0f} ms")
    print(f"{len(late)} kernels were compiled when they were met")
    found = phases(server.said, ready_s)
    return {
        "start": name, "ready_s": ready_s, "first_ms": first_ms, "last_ms": last_ms, "late": late, "phases": found,
        "log": lines,
    }  # fmt: skip


def phases(said: list[tuple[float, str]], ready_s: float) -> dict[str, float]:
    """Seconds of each phase of the engine's process, from its log, and of what was around it."""
    found: dict[str, float] = {}
    for at_s, line in said:
        if PAGE in line:
            found["front ends (beside it)"] = at_s
        if READY in line:
            own = {phase: float(s) for phase, s in PHASE.findall(line.partition(READY)[2].partition(":")[2])}
            found |= {**own, "around it": ready_s - sum(own.values())}
    return found


def side_by_side(results: list[dict[str, Any]]) -> str:
    names = dict.fromkeys(phase for r in results for phase in r["phases"])
    lines = [f"{'':<24}" + "".join(f"{r['start']:>16}" for r in results)]
    for name in names:
        each = (r["phases"].get(name) for r in results)
        lines.append(f"{name:<24}" + "".join(f"{'–':>16}" if s is None else f"{s:16.2f}" for s in each))
    return "\n".join([*lines, f"{'ready, s':<24}" + "".join(f"{r['ready_s']:16.2f}" for r in results)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--again", type=int, default=2, help="starts with warm caches (default: 2)")
    parser.add_argument("--caches", type=Path, help="an empty folder, which is left (default: one that is removed)")
    parser.add_argument("--against", type=Path, metavar="SRC", help="another src folder, to be started after this one")
    parser.add_argument("--out", type=Path, help="all that was measured and logged, as JSON")
    given = sys.argv[1:]
    at = given.index("--") if "--" in given else len(given)
    args, options = parser.parse_args(given[:at]), given[at + 1 :]
    results = []
    for label, sources in {"": SOURCES, **({"before, ": args.against} if args.against else {})}.items():
        compileall.compile_dir(sources, quiet=1)
        with tempfile.TemporaryDirectory(prefix="sonant-caches-") as made:
            caches = (args.caches or Path(made)) / ("before" if label else "now")
            for name in ("empty", *(f"warm {n + 1}" for n in range(args.again))):
                results.append(start(label + name, args.folder, options, caches, str(sources)))
    print("\n" + side_by_side(results))
    if args.out is not None:
        args.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
