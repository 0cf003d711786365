"""A server under a steady load for a long time, with all that clients do: does it stay as it was, and serve everybody?

    python tests/serving/soak.py [FOLDER] --minutes 60 --listeners 2 [--workers 2] [--device cuda] [--voices DIR]
    python tests/serving/soak.py FOLDER --minutes 5 --listeners 1500 --clients 6 --frames 125 --workers 6 --device cuda

`--listeners` clients listen at once and play sound as it comes: few of them each ask again when they have heard one to
its end, many come at random times. Meanwhile some hang up midway, some read slowly, some send requests that are wrong,
and if the model clones, voices are uploaded, spoken with and deleted. Before memory counts, everything that a server
keeps for later is filled: the cache of prompts, which has its full size from the start but no pages yet, the clips that
it remembers, and the working memory of a full server.

Every minute it prints the memory of each process. At the end, for each process: its memory at the beginning and the end
of what counts, and the slope of a line through all samples; then how many were heard whole, without a gap, broken off,
refused, and how late the clients' own timers were, which is part of every gap: hundreds of listeners need several
`--clients`, which are processes. The exit code is 0 if nothing was lost, nobody had a gap, and the memory of all
together is flat within 2 %.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import queue
import signal
import subprocess
import sys
import time
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from process_memory import MemoryRecord
from soak_clients import LENGTHS, Crowd, Told, connected, text

WARM_SHARE, WARM_MINUTES = 0.1, 1.0  # warm-up before memory counts: a share of all the time, and at least
SAMPLE_S = 10.0
REMEMBERED = 80  # clips, a few more than an engine remembers
PROMPTS = 1200  # at least: a CPU's cache has 1,024 blocks, of which a prompt may write just one anew
HOUSE, HOUSES = 10, 6  # requests at once, more than a CPU has rows; and how many rounds
LOST = ("broken", "status", "upload 4", "upload 5", "delete 4", "delete 5")


async def fill(crowd: Crowd, memory: MemoryRecord) -> None:
    """Fill what is kept for later until it takes no more memory, and the working memory of a full server."""
    async with connected() as session:
        if crowd.uploads:  # a model that clones has no voices of its own
            crowd.voice = await crowd.upload(session) or crowd.voice
        crowd.sound_s = float(np.mean([await crowd.ask(session, text(words)) for words in LENGTHS]))
        for _ in range(REMEMBERED if crowd.uploads else 0):
            await crowd.come_and_go(session, frames=2)
        for _ in range(HOUSES):
            house = asyncio.gather(*(crowd.ask(session, text(20), stream=n % 2 == 0) for n in range(HOUSE)))
            while crowd.uploads and not house.done():
                await crowd.come_and_go(session, frames=2)  # so that clips are encoded while as many speak as can
            await house
        before, asked = 0.0, 0
        while (now := memory.total_mib()) > 1.002 * before or asked < PROMPTS:
            before = now
            for _ in range(40):
                asked += 1
                await crowd.ask(session, text(40), max_frames=1)
    print(f"filled with {asked} prompts: {before:.0f} MiB", flush=True)
    crowd.told = Told()


def client(number: int, crowd: Crowd, minutes: float, news: Any) -> None:
    """Run a process of listeners, which reports what they meet."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(crowd.stay(minutes, lambda told: news.put((number, told))))


def soak(crowd: Crowd, clients: int, minutes: float, memory: MemoryRecord) -> Told:
    """Run the crowd in `clients` processes while memory is watched → what all of them met."""
    context = multiprocessing.get_context("spawn")
    news: Any = context.Queue()
    parts = [
        replace(crowd, listeners=crowd.listeners / clients, uploads=crowd.uploads and n == 0) for n in range(clients)
    ]
    processes = [
        context.Process(target=client, args=(n, part, minutes, news), daemon=True) for n, part in enumerate(parts)
    ]
    for process in processes:
        process.start()
    told = watch(news, processes, minutes, memory)
    if broken := [process.exitcode for process in processes if process.exitcode]:
        sys.exit(f"{len(broken)} processes of clients failed")
    return told


def watch(news: Any, processes: list[BaseProcess], minutes: float, memory: MemoryRecord) -> Told:
    latest: dict[int, Told] = {}
    warm_s, began_s = 60 * max(WARM_MINUTES, WARM_SHARE * minutes), time.monotonic()
    sampled_s, told_s = 0.0, 60.0
    while any(process.is_alive() for process in processes) or not news.empty():
        with contextlib.suppress(queue.Empty):
            number, told = news.get(timeout=1.0)
            latest[number] = told
        at_s = time.monotonic() - began_s
        if warm_s < at_s < 60 * minutes and at_s - sampled_s >= SAMPLE_S:
            sampled_s = at_s
            memory.sample(at_s)
        if at_s >= told_s:
            told_s += 60
            so_far = sum(latest.values(), Told())
            gaps = f"{len(so_far.gaps_s)} with a gap"
            print(f"{at_s / 60:5.1f} min  {memory.now()}  {dict(so_far.outcomes)}, {gaps}", flush=True)
    return sum(latest.values(), Told())


def verdict(told: Told, memory: MemoryRecord) -> int:
    growth = memory.show()
    first = np.quantile(told.first_s, [0.5, 0.99]) if told.first_s else (0, 0)
    late = np.quantile(told.late_s, [0.5, 0.99, 1]) if told.late_s else (0, 0, 0)
    lost = sum(n for what, n in told.outcomes.items() if what.startswith(LOST))
    print(f"{dict(told.outcomes)}; {lost} lost")
    print(f"first sound p50 {first[0]:.3f} s, p99 {first[1]:.3f} s")
    print(f"{len(told.gaps_s)} listeners with a gap, of {1e3 * max(told.gaps_s, default=0):.0f} ms at most")
    print(f"the clients' own clock: late by {1e3 * late[1]:.1f} ms at p99, {1e3 * late[2]:.0f} at most")
    held = growth is not None and growth <= 0.02
    told_growth = "not enough samples" if growth is None else f"{100 * growth:+.2f} %"
    print(f"memory {told_growth}: {'flat' if held else 'NOT flat'} within 2 %")
    return int(lost > 0 or bool(told.gaps_s) or not held)


async def sample_rate(url: str) -> int:
    """Wait until the server is ready → the sample rate of its model."""
    async with aiohttp.ClientSession() as session:
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"{url}/ready") as ready:
                    if ready.status == 200:
                        break
            await asyncio.sleep(0.2)
        async with session.get(f"{url}/v1/engine") as engine:
            return int((await engine.json())["sample_rate"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="of a checkpoint; none: the built-in voice")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--listeners", type=float, default=2.0, help="that listen at once, on average")
    parser.add_argument("--clients", type=int, default=1, help="processes that they are shared out to")
    parser.add_argument("--frames", type=int, help="of each utterance at most, for random weights, which hardly end")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--voices", type=Path, help="a folder for uploads, where the model clones")
    parser.add_argument("--port", type=int, default=8766)
    args = parser.parse_args()
    url = f"http://127.0.0.1:{args.port}"
    command = [sys.executable, "-m", "sonant.cli.main", "serve", *([args.folder] if args.folder else [])]
    command += ["--port", str(args.port), "--workers", str(args.workers), "--device", args.device]
    command += ["--log-level", "error"]
    command += ["--voices", str(args.voices), "--consent", "asserted"] if args.voices else []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))
    server = subprocess.Popen(command)
    try:
        limits = {} if args.frames is None else {"max_frames": args.frames}
        rate = asyncio.run(sample_rate(url))
        crowd = Crowd(url, rate, args.listeners, limits, uploads=args.voices is not None)
        memory = MemoryRecord(server.pid)
        asyncio.run(fill(crowd, memory))
        told = soak(crowd, args.clients, args.minutes, memory)
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(60)
    print(f"exit code {code}")
    return verdict(told, memory) or code


if __name__ == "__main__":
    sys.exit(main())
