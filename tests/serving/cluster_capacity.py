"""Does the simulation of replicas predict what one and three real replicas do on this machine?

    python tests/serving/cluster_capacity.py [FOLDER] [--seconds 12] [--patience 60] [--port 8779] [--save FILE]
    python tests/serving/cluster_capacity.py --read FILE

FOLDER is a checkpoint's, or `tiny` for one that is written here, or nothing for the built-in voice. First, clients that
never stop asking keep two replicas busy, and the simulation is given the core seconds that this took (not wall time,
which would include other people's work): of an engine's step thread for each step, row and prompt, and for the codec
(by the phases that the engine counts itself); of its channel thread, of front ends, of proxy and clients, for each
request and chunk of sound. There are two replicas, since engines that share caches need more core seconds than one
alone. How long a process keeps a core is measured beforehand. For every window the simulation is also given the number
of cores that everything else on this machine left, Ray's own processes included.

Then other numbers of clients ask one and three replicas. The script prints what these did, what was predicted, and the
relative error. Each window begins when the machine is quiet, at the latest after `--patience` seconds. Measurements can
be saved, and judged again after a change of the simulation.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from serving.cluster_processes import alone, cluster, folder_of
from serving.cluster_windows import FRAME_S, FRAMES, Window, window
from serving.core_turns import turn_s
from sonant.bench.scale.engine_times import EngineTimes
from sonant.bench.scale.fleet import Fleet, Load
from sonant.bench.scale.shared_host import Carrier, HostTimes
from sonant.config import EngineConfig
from sonant.serving.cluster.replica import ReplicaSetup
from sonant.serving.options import ModelOptions, ServeOptions

ROWS = 8
CORES = len(os.sched_getaffinity(0))
LEARNT = (2, 8, 16)  # clients, while costs are learnt
SHORT = (8, 5)  # clients and frames: short streams tell the cost of a request from that of a chunk
ASKED = {1: (2, 6), 3: (3, 6, 9, 18)}  # clients to predict for, by replicas
SEEDS = 8  # runs of the simulation
CARRIERS = ("client", "proxy", "front", "channel")
_WRONG = 0.2
_SIZES = EngineConfig(max_rows=ROWS).resolved(None).frame_sizes(FRAME_S)


@dataclass(frozen=True)
class Measured:
    turn_s: float
    learnt: list[Window]
    short: Window
    asked: list[Window]


@dataclass(frozen=True)
class Costs:
    """The costs of speech in core seconds."""

    step: float
    row: float
    prefill: float  # for each step with prompts
    prompt: float
    codec: float  # for each step with codec work
    codec_frame: float
    carriers: dict[str, list[float]]  # by kind of process or thread: for each request, for each chunk

    def engine(self) -> EngineTimes:
        steps = tuple((rows, self.step + rows * self.row) for rows in (1, ROWS))
        return EngineTimes(
            frame_s=FRAME_S, steps=steps, prefill_s=self.prefill, prompt_s=self.prompt, prompts=ROWS, start_s=1e-3,
            rows=ROWS, batch=ROWS, last_steps=1, chunks=_SIZES.chunks, codec_frames=_SIZES.codec_batch,
            codec_s=self.codec, codec_frame_s=self.codec_frame,
        )  # fmt: skip

    def steps_s(self, did: Window) -> float:
        """Return the core seconds that a window's steps should have taken."""
        counts = did.counted
        prompts_s = self.prefill * counts["prefill_steps"] + self.prompt * did.requests
        codec_s = self.codec * counts["codec_steps"] + self.codec_frame * did.frames
        return self.step * counts["steps"] + self.row * counts["rows"] + prompts_s + codec_s

    def host(self, others: float, turn_s: float) -> HostTimes:
        carriers = {name: Carrier(request_s=request, chunk_s=chunk) for name, (request, chunk) in self.carriers.items()}
        return HostTimes(cores=CORES, others=others, turn_s=turn_s, **carriers)


def learnt(told: list[Window], short: Window) -> Costs:
    """Fit the costs by least squares over the windows. A stream's end is part of its steps, so the costs of steps are
    fitted to streams of one length."""
    ran_s = np.array([w.uses["step"].ran_s for w in told])
    prompts, codec = (
        np.array([w.counted[phase] / w.counted["phases_s"] for w in told]) for phase in ("prefill_s", "codec_s")
    )
    step, row = shares([[w.counted["steps"], w.counted["rows"]] for w in told], (1 - prompts - codec) * ran_s)
    prefill, prompt = shares([[w.counted["prefill_steps"], w.requests] for w in told], prompts * ran_s)
    codec_step, codec_frame = shares([[w.counted["codec_steps"], w.frames] for w in told], codec * ran_s)
    every = [*told, short]
    asked = [[w.requests, w.chunks] for w in every]
    carriers = {name: shares(asked, np.array([w.uses[name].ran_s for w in every])) for name in CARRIERS}
    return Costs(step, row, prefill, prompt, codec_step, codec_frame, carriers)


def shares(counts: list[list[float]], used: np.ndarray) -> list[float]:
    """Return the cost of one of each counted thing, by least squares; a cost that would be negative is 0."""
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


def compare(did: Window, costs: Costs, turn_s: float) -> float:
    """Print what was measured and what was predicted → the largest relative error.

    First sounds are compared by median and mean. Where two engines share a core and the third has one to itself they
    form two groups, and the median alone would lie in whichever is slightly larger.
    """
    load = Load(listeners=did.clients, frames=FRAMES, seconds=10.0, closed=True)
    engine, host = costs.engine(), costs.host(CORES - did.left, turn_s)
    said = [Fleet(engine, did.replicas, host=host, seed=seed).run(load) for seed in range(SEEDS)]
    first_s = [first_s for each in said for first_s in each.first_s]
    pairs = (
        (1e3 * float(np.median(did.first_s)), 1e3 * float(np.median(first_s))),
        (1e3 * float(np.mean(did.first_s)), 1e3 * float(np.mean(first_s))),
        (did.audio_s_per_s, float(np.mean([each.audio_s_per_s for each in said]))),
    )
    median, mean, sound = (f"{m:.1f}, predicted {p:.1f} ({100 * (p / m - 1):+.0f} %)" for m, p in pairs)
    print(f"{did.replicas} replicas, {did.clients} clients: first sound in ms: median {median}, mean {mean}; sound a "
          f"second {sound}")  # fmt: skip
    print(f"    {did.left:.2f} cores left, {sum(use.ran_s for use in did.uses.values()) / did.seconds:.2f} used; steps "
          f"{did.uses['step'].ran_s:.2f} core seconds where {costs.steps_s(did):.2f} were learnt; in the engine "
          f"{1e3 * did.counted['first_step_s'] / did.counted['first_steps']:.1f} ms to the first frame")  # fmt: skip
    print_waits(did)
    return float(np.max([abs(predicted / measured - 1) for measured, predicted in pairs]))


def print_waits(did: Window) -> None:
    waits = ", ".join(f"{name} {1e3 * wait_s:.2f}" for name, wait_s in did.waits.items())
    print(f"    ms waited for a core each time: {waits}", flush=True)


def print_learnt(had: Measured, costs: Costs) -> None:
    engine, told = costs.engine(), had.learnt
    left = ", ".join(f"{w.left:.2f}" for w in told)
    print(f"learnt, with {left} cores left and turns of {1e3 * had.turn_s:.1f} ms; in ms of a core: a step of one row "
          f"{1e3 * engine.step_s(1, 0):.2f}, of {ROWS} {1e3 * engine.step_s(ROWS, 0):.2f}, prompts "
          f"{1e3 * costs.prefill:.2f} and {1e3 * costs.prompt:.2f} each, the codec {1e3 * costs.codec:.2f} and "
          f"{1e3 * costs.codec_frame:.2f} a frame")  # fmt: skip
    carried = (f"{name} {1e3 * r:.2f}, {1e3 * c:.3f}" for name, (r, c) in costs.carriers.items())
    print(f"    a request and a chunk: {'; '.join(carried)}")
    for w in told:
        print_waits(w)


def measured(folder: str | None, seconds: float, patience_s: float, port: int) -> Measured:
    with alone(), folder_of(folder) as written:
        setup = ReplicaSetup(
            folder=written, model=ModelOptions(device="cpu"), engine=EngineConfig(max_rows=ROWS),
            serving=ServeOptions(port=port, log_level="error"),
        )  # fmt: skip
        turn = turn_s()
        with cluster(setup, 2) as c:
            asyncio.run(window(c, 4, 2.0))  # warm-up
            told = [asyncio.run(window(c, clients, seconds, patience_s)) for clients in LEARNT]
            short = asyncio.run(window(c, SHORT[0], seconds, patience_s, SHORT[1]))
        asked = []
        for replicas, numbers in ASKED.items():
            with cluster(setup, replicas) as c:
                asyncio.run(window(c, 2 * replicas, 2.0))
                asked += [asyncio.run(window(c, clients, seconds, patience_s)) for clients in numbers]
    return Measured(turn, told, short, asked)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--patience", type=float, default=60.0)
    parser.add_argument("--port", type=int, default=8779)
    parser.add_argument("--save", type=Path, help="file for what was measured")
    parser.add_argument("--read", type=Path, help="such a file: nothing is measured")
    args = parser.parse_args()
    if args.read is not None:
        had = msgspec.json.decode(args.read.read_bytes(), type=Measured)
    else:
        had = measured(args.folder, args.seconds, args.patience, args.port)
    if args.save is not None:
        args.save.write_bytes(msgspec.json.encode(had))
    costs = learnt(had.learnt, had.short)
    print_learnt(had, costs)
    worst = max(compare(did, costs, had.turn_s) for did in had.asked)
    print(f"{'FAILED' if worst > _WRONG else 'ok'}: off by {100 * worst:.0f} % at most, {100 * _WRONG:.0f} allowed")
    return int(worst > _WRONG)


if __name__ == "__main__":
    sys.exit(main())
