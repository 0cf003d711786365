"""Where the milliseconds to a listener's first sound go, from the client's socket to the device and back:

    PYTHONPATH=src:tests python tests/gpu_first_sound.py --folder DIR --out RESULTS [--requests 32] [--burst 256]

The server's processes record time stamps (`first_sound/`). For single streams it prints the time line of the median
request and of the slowest ones, and the median time of each part. For a crowd that arrives at once it prints the first
steps from the first arrival on: what each was for, how long the host took for it, and how much of that it waited for
the GIL (wall-clock time less the thread's own).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from first_sound.marks import FOLDER
from gpu_http import FRAMES, PORT, bench, wait_until_ready
from sonant.bench.client.prompts import built_in

TEXTS = [prompt.text for prompt in built_in(lengths=["medium"])]  # the texts of `gpu_http.py`
CHAIN = (
    "connected", "request", "asgi", "parsed", "submit", "prompt", "asked",  # a front end
    "asked for", "prompt in", "queued",  # the channel's thread
    "plan", "shared", "prompts", "staged", "prefill launched",  # the step thread
    "launched", "waited", "booked", "told",
    "flush", "sound", "answer", "written", "written",
)  # fmt: skip
Note = tuple[str, float, float, Any]
_NAN = float("nan")


class Server:
    """A server whose processes record time stamps."""

    def __init__(self, folder: str, out: Path, options: list[str]) -> None:
        self.marks = out / "marks"
        self.marks.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "first_sound.serve", folder, "--port", str(PORT), *options]
        log = (out / "server.log").open("wb")
        self.process = subprocess.Popen(command, stderr=log, env={**os.environ, FOLDER: str(self.marks)})
        print(f"ready after {wait_until_ready(self.process, out / 'server.log'):.1f} s", flush=True)
        self._written = 0

    def children(self) -> list[int]:
        found = []
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                pid, parent = int(status.parent.name), int(status.read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            if parent == self.process.pid:
                found.append(pid)
        return found

    def next_way(self) -> None:
        for pid in self.children():
            os.kill(pid, signal.SIGUSR1)
        time.sleep(0.2)

    def notes(self) -> list[Note]:
        """All notes since the previous call, in order."""
        pids = self.children()
        for pid in pids:
            os.kill(pid, signal.SIGUSR2)
        notes: list[Note] = []
        for pid in pids:
            while not (found := list(self.marks.glob(f"*-{pid}-{self._written}.json"))):
                time.sleep(0.01)
            notes += [tuple(note) for note in json.loads(found[0].read_text())]
        self._written += 1
        return sorted(notes, key=lambda note: note[1])

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        print("exit code", self.process.wait(60))


def ask(number: int, frames: int) -> tuple[float, float, float]:
    """Send a request → when it began, when it was connected, and when the first sound arrived."""
    asked = {"input": TEXTS[number % len(TEXTS)], "voice": "alloy", "response_format": "pcm", "max_frames": frames}
    body = json.dumps({**asked, "stream": True}).encode()
    lines = ("POST /v1/audio/speech HTTP/1.1", "Host: x", "Content-Type: application/json", "Connection: close")
    head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode()
    began_s = time.monotonic()
    with socket.create_connection(("127.0.0.1", PORT)) as sock:
        connected_s = time.monotonic()
        sock.sendall(head + body)
        answer = sock.recv(1 << 16)
        while len(answer.partition(b"\r\n\r\n")[2]) < 64:
            answer += sock.recv(1 << 16)
        first_s = time.monotonic()
        assert answer.startswith(b"HTTP/1.1 200"), answer[:300]
        while sock.recv(1 << 16):
            pass
    return began_s, connected_s, first_s


def time_line(asked: tuple[float, float, float], notes: list[Note]) -> dict[str, float]:
    """Milliseconds from the beginning to each note of the chain, each the first after the previous one."""
    began_s, connected_s, first_s = asked
    found, at_s = {"client connected": 1e3 * (connected_s - began_s)}, began_s
    within = [note for note in notes if began_s <= note[1] <= first_s]
    for n, name in enumerate(CHAIN):
        times = [t for what, t, _, _ in within if what == name and t >= at_s and (n + 1 < len(CHAIN) or t > at_s)]
        if not times:
            continue
        at_s = times[0]
        found["head" if name in found else name] = 1e3 * (at_s - began_s)
    found["client heard"] = 1e3 * (first_s - began_s)
    return found


def show_one(title: str, asked: list[tuple[float, float, float]], notes: list[Note]) -> None:
    lines = sorted((time_line(each, notes) for each in asked), key=lambda line: line["client heard"])
    heard = [line["client heard"] for line in lines]
    print(f"== {title}: first sound ms p50 {statistics.median(heard):.2f}", end=" ")
    print(f"p90 {heard[9 * len(heard) // 10]:.2f} slowest", *(f"{ms:.2f}" for ms in heard[-4:]))
    middle, names = lines[len(lines) // 2], list(lines[len(lines) // 2])
    steps = [dict(zip(line, _steps(line), strict=True)) for line in lines]
    print(f"{'':18s} median of it  |  the median request     |  the four slowest: at, and it took")
    for name in names:
        typical = statistics.median([step[name] for step in steps if name in step])
        chosen = zip([middle, *lines[-4:]], [steps[len(lines) // 2], *steps[-4:]], strict=True)
        shown = [f"{line.get(name, _NAN):7.2f} {step.get(name, _NAN):5.2f}" for line, step in chosen]
        print(f"{name:18s} {typical:11.3f}   | ", "  | ".join(shown))
    device = [note[3] for note in notes if note[0] == "device" and len(note[3]) == 3]
    if device:
        parts = [statistics.median(part) for part in zip(*device, strict=True)]
        print("device ms, from staging on: prefill done {:.2f}, frame {:.2f}, codec {:.2f}".format(*parts))


def _steps(line: dict[str, float]) -> list[float]:
    times = list(line.values())
    return [at - before for before, at in zip([0.0, *times], times, strict=False)]


def show_crowd(title: str, crowd: int, notes: list[Note], most: int = 32) -> None:
    """Print the steps from the first arrival on, with the host's wall-clock time, and how much of that its thread did
    not run."""
    arrivals = [t for name, t, _, _ in notes if name == "queued"]
    began_s = next(t for name, t, _, _ in notes if name == "asked for")
    times_ms = {q: 1e3 * (_at(arrivals[:crowd], q) - began_s) for q in (1, 25, 50, 75, 99)}
    print(f"== {title}: arrivals ms", *(f"{q}% {ms:.1f}" for q, ms in times_ms.items()))
    print("   at ms  came prompts positions rows       chunks |", end="")
    print("  plan launch  lock | tell  lock | done at | device: prompts, all")
    before_s = began_s
    for step in steps_of(notes, began_s)[:most]:
        came, before_s = sum(before_s < t <= step["plan"][1] for t in arrivals), step["plan"][1]
        prompts, positions, rows, codec = step["planned"][3]
        chunks = "+".join(f"{count}x{frames}" for frames, count in codec.items())
        print(f"{1e3 * (before_s - began_s):8.1f} {came:5d} {prompts:7d} {positions:9d} {rows:4d}", end=" ")
        print(f"{chunks:>12s} |", end="")
        print(f"{_took(step, 'plan', 'planned'):6.2f} {_took(step, 'planned', 'launched'):6.2f}", end=" ")
        print(f"{_others(step, 'plan', 'launched'):5.2f} |{_took(step, 'waited', 'told'):5.2f}", end=" ")
        done_ms = 1e3 * (step["waited"][1] - began_s) if "waited" in step else _NAN
        print(f"{_others(step, 'waited', 'told'):5.2f} | {done_ms:7.1f} |", end=" ")
        print(*(f"{ms:.1f}" for ms in step.get("device", [])[::2]))


def steps_of(notes: list[Note], began_s: float) -> list[dict[str, Any]]:
    """The notes of each step. Steps come back in the order of their launches."""
    steps: list[dict[str, Any]] = []
    plan, back = None, 0
    for note in (n for n in notes if n[1] >= began_s):
        name = note[0]
        if name == "plan":
            plan = note
        elif name == "planned" and plan is not None and note[3] != [0, 0, 0, {}]:
            steps.append({"plan": plan, "planned": note})
        elif steps and name == "launched":
            steps[-1][name] = note
        elif steps and name == "device":
            steps[-1][name] = note[3]
        elif name in ("waited", "told") and back < len(steps):
            steps[back][name] = note
            back += name == "told"
    return [step for step in steps if "launched" in step]


def _took(step: dict[str, Any], first: str, last: str) -> float:
    return 1e3 * (step[last][1] - step[first][1]) if first in step and last in step else _NAN


def _others(step: dict[str, Any], first: str, last: str) -> float:
    """The part of that time in which this thread did not run: it waited for the GIL, or for a core."""
    own = 1e3 * (step[last][2] - step[first][2]) if first in step and last in step else _NAN
    return _took(step, first, last) - own


def _at(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--frames", type=int, default=FRAMES)
    parser.add_argument("--burst", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=2, help="of the crowd")
    parser.add_argument("--ways", default="as it is", help="names of the processes' ways to work, by commas")
    parser.add_argument("--options", default="--device cuda", help="for the server")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    server = Server(args.folder, args.out, args.options.split())
    try:
        if args.burst:
            bench(args.out, "warm", "--concurrency", "64", "--requests", "128", "--processes", "4")
        for n, way in enumerate(args.ways.split(",")):
            if n:
                server.next_way()
            server.notes()
            asked = [ask(1000 * n + k, args.frames) for k in range(args.requests)]
            show_one(way, asked, server.notes())
            if args.burst:
                count, clients = str(args.rounds * args.burst), str(min(6, 1 + args.burst // 50))
                bench(args.out, f"{way} {args.burst}", "--concurrency", str(args.burst), "--requests", count,
                      "--processes", clients)  # fmt: skip
                show_crowd(way, args.burst, server.notes())
    finally:
        server.close()


if __name__ == "__main__":
    main()
