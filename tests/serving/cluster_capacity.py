"""Whether the simulation of replicas says what replicas do: one and three of them on this machine, against it.

    python tests/serving/cluster_capacity.py [FOLDER] [--seconds 12] [--patience 60] [--port 8779]

FOLDER is a checkpoint's, or `tiny` for one that is written here, or nothing for the built-in voice. Two replicas are
asked by some clients who never stop, and the simulation is told the seconds of a core that this took (not the clock's,
which other people's work would be in): of an engine for each step, row and prompt (by the phases that it counts
itself); of a front end, and of proxy and clients, for each request and frame. It is two, since engines that share
caches and cores need more seconds of them than one that is alone. For every window the simulation is also told how
many cores all else on this machine left, Ray's own processes among it.

Then one and three replicas are asked by other numbers of clients. Printed is what they did, what was predicted, and by
how much that is wrong. Each window is begun when others leave the machine alone, if they do within `--patience`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from serving.cluster_processes import Cluster, alone, cluster, folder_of
from serving.cluster_storm import new_session
from serving.core_time import busy_s, core_s, wait_for_quiet
from sonant.bench.scale.engine_times import EngineTimes
from sonant.bench.scale.fleet import Fleet, Load
from sonant.bench.scale.shared_host import HostTimes
from sonant.config import EngineConfig
from sonant.serving.cluster.replica import ReplicaSetup
from sonant.serving.options import ModelOptions, ServeOptions

# Longer than the frames that are asked for, so that each stream has just as many.
TEXT = "The quick brown fox jumps over the lazy dog, and then it rests for a while in the shade of an old tree."
ROWS = 8
FRAME_S = 0.08
FRAMES = 25
BODY = {"input": TEXT, "response_format": "pcm", "seed": 1}
LEARNT = (2, 8, 16)  # clients
SHORT = (8, 5)  # clients and frames, which tell apart what a request and what a frame takes to carry
_PHASES = "sonant_step_phase_seconds_sum"
_SETTLE_S = 1.5
_WRONG = 0.2


@dataclass(frozen=True)
class Window:
    """Of some seconds under a steady load; counts and core seconds are of them only."""

    seconds: float
    first_s: float  # median
    requests: int
    frames: float
    steps: float
    engine_s: float
    front_s: float
    carry_s: float  # proxy and clients
    left: float  # cores that all else left to these four
    prompt_share: float  # of the engine's time in steps

    @property
    def audio_s_per_s(self) -> float:
        return self.frames * FRAME_S / self.seconds


async def window(c: Cluster, clients: int, seconds: float, patience_s: float = 0.0, frames: int = FRAMES) -> Window:
    await asyncio.to_thread(wait_for_quiet, patience_s)
    firsts: list[float] = []
    heard, counting = 0, False
    over = asyncio.Event()

    async def listen(session: aiohttp.ClientSession) -> None:
        nonlocal heard
        while not over.is_set():
            began_s, first = time.monotonic(), True
            async with session.post(f"{c.url}/v1/audio/speech", json={**BODY, "max_frames": frames}) as answer:
                assert answer.status == 200, await answer.text()
                async for data in answer.content.iter_any():
                    if counting and first:
                        firsts.append(time.monotonic() - began_s)
                    first = False
                    heard += len(data) if counting else 0

    pids = {kind: c.pids(kind) for kind in ("engine", "replica", "proxy")}
    pids["proxy"].append(os.getpid())

    async def look() -> np.ndarray:
        told = await asyncio.to_thread(c.counted, "sonant_engine_steps_total", f"{_PHASES} prefill", _PHASES)
        used = [core_s(pids[kind]) for kind in ("engine", "replica", "proxy")]
        return np.array([*told, *used, busy_s(), time.monotonic()])

    async with new_session() as session:
        tasks = [asyncio.create_task(listen(session)) for _ in range(clients)]
        await asyncio.sleep(_SETTLE_S)
        before = await look()
        counting = True
        await asyncio.sleep(seconds)
        counting = False
        steps, prefill_s, phases_s, engine_s, front_s, carry_s, all_s, took_s = await look() - before
        over.set()
        await asyncio.gather(*tasks)
    others_s = max(0.0, all_s - engine_s - front_s - carry_s)
    return Window(
        seconds=seconds, first_s=float(np.median(firsts)), requests=len(firsts), frames=heard / (2 * 24_000 * FRAME_S),
        steps=steps * seconds / took_s, engine_s=engine_s * seconds / took_s, front_s=front_s * seconds / took_s,
        carry_s=carry_s * seconds / took_s, left=len(os.sched_getaffinity(0)) - others_s / took_s,
        prompt_share=prefill_s / phases_s,
    )  # fmt: skip


@dataclass(frozen=True)
class Costs:
    """Of speech, in seconds of a core."""

    step: float
    row: float
    prompt: float
    front: tuple[float, float]  # of a request, of a frame
    carry: tuple[float, float]

    def engine(self) -> EngineTimes:
        steps = tuple((rows, self.step + rows * self.row) for rows in (1, ROWS))
        return EngineTimes(
            frame_s=FRAME_S, steps=steps, prompt_s=self.prompt, prompts=ROWS, start_s=1e-3, rows=ROWS,
            batch=ROWS,
        )  # fmt: skip

    def host(self, cores: float) -> HostTimes:
        return HostTimes(
            cores=cores, front_request_s=self.front[0], front_frame_s=self.front[1], client_request_s=self.carry[0],
            client_frame_s=self.carry[1],
        )  # fmt: skip


def learnt(told: list[Window], short: Window) -> Costs:
    """By least squares over the windows. What ends a stream is in its steps, so those are of streams of one length."""
    engine = np.array([w.engine_s for w in told])
    prompts = np.array([w.prompt_share for w in told])
    step, row = shares([[w.steps, w.frames] for w in told], (1 - prompts) * engine)
    (prompt,) = shares([[w.requests] for w in told], prompts * engine)
    every = [*told, short]
    asked = [[w.requests, w.frames] for w in every]
    front = shares(asked, np.array([w.front_s for w in every]))
    carry = shares(asked, np.array([w.carry_s for w in every]))
    return Costs(step, row, prompt, (front[0], front[1]), (carry[0], carry[1]))


def shares(counts: list[list[float]], used: np.ndarray) -> list[float]:
    """What each thing that was counted took; one that would have taken less than nothing took nothing."""
    table = np.array(counts)
    kept = list(range(table.shape[1]))
    found = np.zeros(table.shape[1])
    while kept:
        solved = np.linalg.lstsq(table[:, kept], used, rcond=None)[0]
        if (solved >= 0).all():
            found[kept] = solved
            break
        kept.pop(int(solved.argmin()))
    return [float(each) for each in found]


def compare(c: Cluster, costs: Costs, clients: int, seconds: float, patience_s: float) -> float:
    """What was measured and what was predicted → by how much the worse of two is wrong."""
    did = asyncio.run(window(c, clients, seconds, patience_s))
    load = Load(listeners=clients, frames=FRAMES, seconds=20.0, closed=True)
    engine, host = costs.engine(), costs.host(did.left)
    said = Fleet(engine, c.replicas, host=host).run(load)
    pairs = ((did.first_s, said.first_quantile_s(0.5)), (did.audio_s_per_s, said.audio_s_per_s))
    first, sound = (f"{m:.3f}, predicted {p:.3f} ({100 * (p / m - 1):+.0f} %)" for m, p in pairs)
    used = costs.step * did.steps + costs.row * did.frames + costs.prompt * did.requests
    print(f"{c.replicas} replicas, {clients} clients: first sound {first} s; sound a second {sound} s")
    print(f"    {did.left:.2f} cores left; engines used {did.engine_s:.2f} core seconds where {used:.2f} were learnt",
          flush=True)  # fmt: skip
    wrong = [abs(predicted / measured - 1) for measured, predicted in pairs]
    return float(np.max(wrong))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--patience", type=float, default=60.0)
    parser.add_argument("--port", type=int, default=8779)
    args = parser.parse_args()
    worst = 0.0
    with alone(), folder_of(args.folder) as folder:
        setup = ReplicaSetup(
            folder=folder, model=ModelOptions(device="cpu"), engine=EngineConfig(max_rows=ROWS),
            serving=ServeOptions(port=args.port, log_level="error"),
        )  # fmt: skip
        with cluster(setup, 2) as c:
            asyncio.run(window(c, 4, 2.0))  # so that nothing is done for the first time
            told = [asyncio.run(window(c, clients, args.seconds, args.patience)) for clients in LEARNT]
            costs = learnt(told, asyncio.run(window(c, SHORT[0], args.seconds, args.patience, SHORT[1])))
            print_learnt(told, costs)
        with cluster(setup, 1) as c:
            asyncio.run(window(c, 2, 2.0))
            for clients in (2, 6):
                worst = max(worst, compare(c, costs, clients, args.seconds, args.patience))
        with cluster(setup, 3) as c:
            asyncio.run(window(c, 6, 2.0))
            for clients in (3, 6, 9, 18):
                worst = max(worst, compare(c, costs, clients, args.seconds, args.patience))
    print(f"{'FAILED' if worst > _WRONG else 'ok'}: off by {100 * worst:.0f} % at most, {100 * _WRONG:.0f} allowed")
    return int(worst > _WRONG)


def print_learnt(told: list[Window], costs: Costs) -> None:
    engine, host = costs.engine(), costs.host(1.0)
    left = ", ".join(f"{w.left:.2f}" for w in told)
    print(f"learnt, with {left} cores left; in ms of a core: a step of one row "
          f"{1e3 * engine.step_s(1, 0):.1f}, of {ROWS} {1e3 * engine.step_s(ROWS, 0):.1f}, a prompt "
          f"{1e3 * engine.prompt_s:.1f}")  # fmt: skip
    print(f"    front end: a request {1e3 * host.front_request_s:.1f}, a frame {1e3 * host.front_frame_s:.2f}; proxy "
          f"and clients: {1e3 * host.client_request_s:.1f}, {1e3 * host.client_frame_s:.2f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
