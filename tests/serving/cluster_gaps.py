"""Do listeners run out of sound more often with Ray than without? The same listeners try both by turns.

    python tests/serving/cluster_gaps.py [FOLDER] [--pairs 4] [--seconds 20] [--share 0.75] [--others 0.15]

FOLDER is a checkpoint's, or `tiny` for one that is written here, or nothing for the built-in voice. First as many
servers as replicas (`sonant serve`, each a front end and an engine, no Ray anywhere) are saturated: that gives the
capacity. Then listeners come at random times, so many that `--share` of the capacity is heard at once: by turns to
servers and to replicas on Ray, at the same times in both blocks of a pair. Without Ray the client picks the server with
the fewest requests, as the proxy would. Each stream is heard as it is made; a gap is when sound came after the last had
run out. A block begins when the machine is quiet, at the latest after `--patience` seconds; a block in which others
took more of a core than `--others` is repeated, up to `--again` times.

Prints how many streams had a gap, how long they lacked sound, the core seconds that serving a second of sound took
(including Ray's own processes, not the client), and how busy the machine was. Exits with 1 if a bootstrap over pairs
has more gaps with Ray in 95 of 100 draws.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import aiohttp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from serving.cluster_processes import alone, cluster, fetch, folder_of
from serving.cluster_storm import new_session
from serving.core_time import busy_s, core_s, descendants, wait_for_quiet
from sonant.config import EngineConfig
from sonant.serving.cluster.replica import ReplicaSetup
from sonant.serving.options import ModelOptions, ServeOptions

TEXT = "The quick brown fox jumps over the lazy dog, and then it rests for a while in the shade of an old tree."
FRAMES = 25
STREAM_S = FRAMES * 0.08
BODY = {"input": TEXT, "response_format": "pcm", "seed": 1, "max_frames": FRAMES}
_RATE = 2 * 24_000  # bytes a second
_DRAWS = 10_000


@dataclass
class Heard:
    """What the listeners of one block heard."""

    streams: int = 0
    gaps: int = 0
    lacked_s: float = 0.0
    refused: int = 0
    client_s: float = 0.0  # core seconds that listening took
    first_s: list[float] = field(default_factory=list)

    async def listen(self, session: aiohttp.ClientSession, url: str) -> None:
        size, began_s, first_s, lacked_s = 0, time.monotonic(), 0.0, 0.0
        async with session.post(f"{url}/v1/audio/speech", json=BODY) as answer:
            if answer.status != 200:
                self.refused += 1
                return
            async for data in answer.content.iter_any():
                now_s = time.monotonic()
                first_s = first_s or now_s
                if size:  # A late chunk delays all that follow.
                    lacked_s += max(0.0, now_s - first_s - size / _RATE - lacked_s)
                size += len(data)
        assert size == FRAMES * 2 * 1920, f"{size} bytes"
        self.streams += 1
        self.gaps += lacked_s > 0
        self.lacked_s += lacked_s
        self.first_s.append(first_s - began_s)

    def show(self, name: str, used_s: float, busy: float, others: float) -> None:
        first = 1e3 * np.quantile(self.first_s, (0.5, 0.99))
        print(f"    {name:<12}{self.gaps} of {self.streams} with a gap, {self.lacked_s / self.streams:.3f} s each; "
              f"first sound {first[0]:.0f}, {first[1]:.0f} ms; {self.refused} refused; "
              f"{used_s / (self.streams * STREAM_S):.3f} core seconds a second of sound; {busy:.2f} cores busy, "
              f"{others:.2f} by others", flush=True)  # fmt: skip


class Addresses:
    """Where requests go: to one proxy, or to whichever server has the fewest of the client's requests."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.open = dict.fromkeys(urls, 0)

    @contextmanager
    def taken(self) -> Iterator[str]:
        url = min(self.open, key=lambda each: self.open[each])
        self.open[url] += 1
        try:
            yield url
        finally:
            self.open[url] -= 1


async def block(urls: Sequence[str], listeners: float, seconds: float, seed: int) -> Heard:
    heard, addresses = Heard(), Addresses(urls)
    chance = random.Random(seed)

    async def come(session: aiohttp.ClientSession) -> None:
        with addresses.taken() as url:
            await heard.listen(session, url)

    async with new_session() as session, asyncio.TaskGroup() as tasks:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            tasks.create_task(come(session))
            await asyncio.sleep(chance.expovariate(listeners / STREAM_S))
    return heard


async def capacity(urls: Sequence[str], clients: int, seconds: float) -> float:
    """Return the seconds of sound made in a second for clients that never stop asking."""
    heard, addresses = Heard(), Addresses(urls)

    async def ask_on(session: aiohttp.ClientSession, end_s: float) -> None:
        while time.monotonic() < end_s:
            with addresses.taken() as url:
                await heard.listen(session, url)

    async with new_session() as session:
        began_s = time.monotonic()
        await asyncio.gather(*(ask_on(session, began_s + seconds) for _ in range(clients)))
        return heard.streams * STREAM_S / (time.monotonic() - began_s)


def most(folder: Path | None, args: argparse.Namespace) -> float:
    with servers(folder, args.replicas, args.port) as urls:
        asyncio.run(capacity(urls, 2 * args.replicas, 3.0))
        wait_for_quiet(args.patience)
        held = asyncio.run(capacity(urls, 4 * args.replicas, 10.0))
    print(f"capacity {held:.1f} s of sound a second, load {os.getloadavg()[0]:.1f}", flush=True)
    return held


@contextmanager
def servers(folder: Path | None, count: int, port: int) -> Iterator[list[str]]:
    with ExitStack() as held:
        urls = []
        for n in range(count):
            options = ["--port", str(port + n), "--device", "cpu", "--workers", "1", "--log-level", "error"]
            command = [sys.executable, "-m", "sonant.cli.main", "serve", *([str(folder)] if folder else []), *options]
            process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
            held.callback(process.wait)
            held.callback(process.terminate)
            urls.append(f"http://127.0.0.1:{port + n}")
        deadline_s = time.monotonic() + 120
        while any(fetch(f"{url}/ready") is None for url in urls):
            assert time.monotonic() < deadline_s, "the servers did not start"
            time.sleep(0.2)
        yield urls


@contextmanager
def on_ray(folder: Path | None, count: int, port: int) -> Iterator[list[str]]:
    serving = ServeOptions(port=port, log_level="error")
    setup = ReplicaSetup(folder=folder, model=ModelOptions(device="cpu"), serving=serving, engine=EngineConfig())
    with cluster(setup, count) as c:
        yield [c.url]


def apart(urls: Sequence[str], listeners: float, seconds: float, seed: int) -> Heard:
    """Run a block in a session of its own: Linux shares cores out among sessions, and Ray's workers are in ours."""
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=os.setsid) as pool:
        return pool.submit(run_block, urls, listeners, seconds, seed).result()


def run_block(urls: Sequence[str], listeners: float, seconds: float, seed: int) -> Heard:
    heard = asyncio.run(block(urls, listeners, seconds, seed))
    heard.client_s = time.process_time()
    return heard


def measured(urls: Sequence[str], name: str, listeners: float, seed: int, args: argparse.Namespace) -> Heard:
    apart(urls, listeners, 3.0, seed=-1)  # warm-up
    for left in reversed(range(args.again + 1)):
        wait_for_quiet(args.patience)
        serving = descendants(os.getpid())
        before = np.array([core_s(serving), busy_s(), time.monotonic()])
        heard = apart(urls, listeners, args.seconds, seed)
        used_s, all_s, took_s = np.array([core_s(serving), busy_s(), time.monotonic()]) - before
        others = (all_s - used_s - heard.client_s) / took_s
        heard.show(name, used_s, all_s / took_s, others)
        if others <= args.others:
            break
        print("    others took too much of a core: " + ("done again" if left else "counted all the same"), flush=True)
    return heard


def verdict(pairs: list[tuple[Heard, Heard]]) -> int:
    """Print whether there are more gaps with Ray than chance explains, from pairs (without, with) → the exit code."""
    shares = np.array([[heard.gaps / heard.streams for heard in pair] for pair in pairs])
    more = shares[:, 1] - shares[:, 0]
    drawn = np.random.default_rng(0).integers(0, len(more), (_DRAWS, len(more)))
    low, high = np.quantile(more[drawn].mean(axis=1), (0.05, 0.95))
    worse = low > 0
    print(f"{'FAILED' if worse else 'ok'}: of a hundred streams {100 * shares[:, 0].mean():.1f} had a gap without Ray, "
          f"{100 * shares[:, 1].mean():.1f} with it; more by {100 * more.mean():+.1f}, 90 of 100 draws between "
          f"{100 * low:+.1f} and {100 * high:+.1f}")  # fmt: skip
    return int(worse)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for others to be quiet")
    parser.add_argument("--others", type=float, default=0.15, help="of a core, that others may take in a block")
    parser.add_argument("--again", type=int, default=4, help="times that a block is done again in which they took more")
    parser.add_argument("--share", type=float, default=0.75)
    parser.add_argument("--listeners", type=float, help="in the place of a share of what is measured to be the most")
    parser.add_argument("--port", type=int, default=8775)
    args = parser.parse_args()
    pairs: list[tuple[Heard, Heard]] = []
    with alone(), folder_of(args.folder) as folder:
        listeners = args.listeners or args.share * most(folder, args)
        for n in range(args.pairs):
            ways = {"without Ray": servers, "with Ray": on_ray}
            heard = {}
            for name in sorted(ways, reverse=n % 2 == 0):  # they take turns at going first
                with ways[name](folder, args.replicas, args.port) as urls:
                    heard[name] = measured(urls, name, listeners, n, args)
            pairs.append((heard["without Ray"], heard["with Ray"]))
    return verdict(pairs)


if __name__ == "__main__":
    sys.exit(main())
