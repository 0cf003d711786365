"""Whether the simulation of replicas says what replicas do: one and three of them on this machine, against it.

    python tests/serving/cluster_capacity.py [FOLDER] [--seconds 15] [--port 8779]

One replica is asked by 1, 4 and 8 clients who never stop, and the simulation is told what its steps took; three are
asked by three, and it is told how many cores that came to, since clients, proxy and front ends use them as well. Then
one and three replicas are asked by other numbers of clients; printed is what they did, what was predicted, and by how
much that is wrong. Each is measured three times and the best counts, but a machine with other work is no use.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from serving.cluster_processes import cluster
from serving.cluster_storm import new_session
from sonant.bench.scale.engine_times import EngineTimes
from sonant.bench.scale.fleet import Fleet, Load
from sonant.config import EngineConfig
from sonant.serving.cluster.replica import ReplicaSetup
from sonant.serving.options import ModelOptions, ServeOptions

# Longer than the frames that are asked for, so that each stream has just as many.
TEXT = "The quick brown fox jumps over the lazy dog, and then it rests for a while in the shade of an old tree."
BODY = {"input": TEXT, "response_format": "pcm", "seed": 1}
ROWS = 8
FRAME_S = 0.08
LEARNT = (1, 4, 8)


@dataclass(frozen=True)
class Measured:
    first_s: float  # median
    audio_s_per_s: float
    stream_s: float  # from the first sound to the last, median


def best(url: str, clients: int, frames: int, seconds: float) -> Measured:
    """Of three, in which the least else was done on this machine."""
    return max((asyncio.run(measure(url, clients, frames, seconds)) for _ in range(3)), key=lambda m: m.audio_s_per_s)


async def measure(url: str, clients: int, frames: int, seconds: float) -> Measured:
    firsts: list[float] = []
    lasts: list[float] = []
    heard = 0
    end_s = time.monotonic() + seconds

    async def listen(session: aiohttp.ClientSession) -> None:
        nonlocal heard
        while (began_s := time.monotonic()) < end_s:
            async with session.post(f"{url}/v1/audio/speech", json={**BODY, "max_frames": frames}) as answer:
                assert answer.status == 200, await answer.text()
                first_s = 0.0
                async for data in answer.content.iter_any():
                    first_s = first_s or time.monotonic()
                    heard += len(data) if time.monotonic() < end_s else 0
            firsts.append(first_s - began_s)
            lasts.append(time.monotonic() - first_s)

    async with new_session() as session:
        await asyncio.gather(*(listen(session) for _ in range(clients)))
    return Measured(float(np.median(firsts)), heard / 48_000 / seconds, float(np.median(lasts)))


def learnt(told: dict[int, Measured], frames: int, seconds: float) -> EngineTimes:
    """Steps from how fast streams came; a prompt's time, and that of the way, from how soon they began."""
    steps = tuple((n, m.stream_s / (frames - 1)) for n, m in told.items())
    alone_s = max(1e-3, told[1].first_s - steps[0][1])
    plain = EngineTimes(
        frame_s=FRAME_S, steps=steps, prompt_s=0.0, prompts=ROWS, start_s=alone_s, rows=ROWS, batch=ROWS
    )
    tried = [
        replace(plain, prompt_s=share * alone_s, start_s=(1 - share) * alone_s) for share in np.linspace(0, 1, 11)
    ]

    def wrong(engine: EngineTimes) -> float:
        loads = {n: Load(listeners=n, frames=frames, seconds=seconds, closed=True) for n in told}
        return sum(abs(Fleet(engine, 1).run(loads[n]).first_quantile_s(0.5) / told[n].first_s - 1) for n in told)

    return min(tried, key=wrong)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--frames", type=int, default=50)
    parser.add_argument("--port", type=int, default=8779)
    args = parser.parse_args()
    folder = None if args.folder is None else args.folder.absolute()
    serving = ServeOptions(port=args.port, log_level="error")
    setup = ReplicaSetup(
        folder=folder, model=ModelOptions(device="cpu"), serving=serving, engine=EngineConfig(max_rows=ROWS)
    )
    worst = 0.0
    with cluster(setup, 1) as c:
        asyncio.run(measure(c.url, 2, args.frames, 3.0))  # so that nothing is done for the first time
        told = {n: best(c.url, n, args.frames, args.seconds) for n in LEARNT}
        engine = learnt(told, args.frames, args.seconds)
        shown = {n: round(s, 4) for n, s in engine.steps}
        print(f"steps {shown}, prompt {engine.prompt_s:.4f}, way {engine.start_s:.4f} s", flush=True)
        for clients in (2, 6):
            worst = max(worst, compare(c.url, engine, 1, None, clients, args.frames, args.seconds))
    with cluster(setup, 3) as c:
        asyncio.run(measure(c.url, 6, args.frames, 3.0))
        made = best(c.url, 3, args.frames, args.seconds).audio_s_per_s
        load = Load(listeners=3, frames=args.frames, seconds=args.seconds, closed=True)
        tried = np.arange(1.0, len(os.sched_getaffinity(0)) + 0.01, 0.05)
        cores = min(tried, key=lambda n: abs(Fleet(engine, 3, cores=n).run(load).audio_s_per_s - made))
        print(f"cores for three engines: {cores:.2f}", flush=True)
        for clients in (6, 9, 18):
            worst = max(worst, compare(c.url, engine, 3, cores, clients, args.frames, args.seconds))
    print(f"off by {100 * worst:.0f} % at most")
    return int(worst > 0.2)


def compare(
    url: str, engine: EngineTimes, replicas: int, cores: float | None, clients: int, frames: int, seconds: float
) -> float:
    """What was measured and what was predicted → by how much the worse of two is wrong."""
    did = best(url, clients, frames, seconds)
    said = Fleet(engine, replicas, cores=cores).run(
        Load(listeners=clients, frames=frames, seconds=seconds, closed=True)
    )
    pairs = ((did.first_s, said.first_quantile_s(0.5)), (did.audio_s_per_s, said.audio_s_per_s))
    first, sound = (f"{m:.3f}, predicted {p:.3f} ({100 * (p / m - 1):+.0f} %)" for m, p in pairs)
    print(f"{replicas} replicas, {clients} clients: first sound {first} s; sound a second {sound} s")
    print(f"    load {os.getloadavg()[0]:.1f}", flush=True)
    return max(abs(predicted / measured - 1) for measured, predicted in pairs)


if __name__ == "__main__":
    sys.exit(main())
