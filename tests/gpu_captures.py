"""On a GPU: how long the capture of graphs takes, with and without a run before each, and whether results are the same.

    python tests/gpu_captures.py MODEL [--rows 256] [--profile 40]

A third way captures them in any order, as in a start whose kernels are still being compiled. Each way has a process of
its own, so that none finds kernels loaded; the first one also fills Triton's caches if they are empty. Each prints its
times by phase and by kind of step, the slowest graphs, and which steps had to be run after all. Then every frame and
codec graph is replayed among the others, in random order, and its results and the rows that it leaves are compared, bit
for bit, with an eager run on the same rows. At the end comes a digest of what many rows have said, which must be the
same for all ways. --profile N runs the second way once more, and prints N lines of a profile of its load.
"""

from __future__ import annotations

import argparse
import cProfile
import logging
import pstats
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from hashlib import blake2b
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import sonant
from sonant.bench.engine.step_rig import StepRig
from sonant.config import EngineConfig
from sonant.engine import graphs
from sonant.engine.compile_ahead import NothingAhead
from sonant.engine.graphs import GraphedStep, GraphPool
from sonant.engine.runner import Runner

FRAMES, ROUNDS = 24, 2
WAYS = ("after a run", "at once", "in any order")


class Captures(logging.Handler):
    """Collects what is logged about captures."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.ms: dict[str, list[tuple[float, str]]] = defaultdict(list)
        self.run_first: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("captured"):
            name, seconds = record.args  # type: ignore[misc]
            self.ms[str(name).split(" for ")[0].split(" of ")[0]].append((1e3 * float(seconds), str(name)))  # type: ignore[arg-type]
        elif "before it is captured" in record.msg:
            self.run_first.append(record.getMessage())

    def show(self) -> None:
        for kind, each in self.ms.items():
            slowest = ", ".join(f"{name} {ms:.0f}" for ms, name in sorted(each)[-3:])
            print(f"  {kind:<9} {len(each):3} graphs {sum(ms for ms, _ in each):7.0f} ms; slowest {slowest}")
        print(f"  run after all: {len(self.run_first)}")
        for line in self.run_first[:12]:
            print("   ", line[:160])


class AnyOrder:
    """Stands in for a compiler that has finished some kernels and not others."""

    over = False

    def __init__(self) -> None:
        self.drawn = random.Random(0)

    def wait_for_any(self, stages: Sequence[int]) -> int:
        return self.drawn.choice(stages)

    def wait_for_all(self) -> None:
        pass


def state_of(runner: Runner) -> list[Tensor]:
    return [runner.rows.slab, *(runner.rows.fields[f.name] for f in runner.rows.tensors)]


def same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


@torch.inference_mode()
def compare(runner: Runner, rows: list[int]) -> None:
    runner.span_blocks = runner.table_blocks
    saved = [tensor.clone() for tensor in state_of(runner)]

    def outcome(step: GraphedStep, size: int, replay: bool) -> list[Tensor]:
        for tensor, before in zip(state_of(runner), saved, strict=True):
            tensor.copy_(before)
        runner.graphs.use(replay)
        out = step(rows[:size]).clone()
        return [out, *(tensor.clone() for tensor in state_of(runner))]

    steps = [*runner.frame.values(), *runner.codec.values()]
    graphs_there = [(step, size) for step in steps for size in step.captured if size <= len(rows)]
    wrong: list[str] = []
    for round_ in range(ROUNDS):
        random.Random(round_).shuffle(graphs_there)
        for step, size in graphs_there:
            eager, replayed = outcome(step, size, False), outcome(step, size, True)
            if not all(same(a, b) for a, b in zip(eager, replayed, strict=True)):
                apart = (eager[0].float() - replayed[0].float()).abs().max().item()
                wrong.append(f"{step.name} for {size}: results up to {apart:g} apart")
    print(f"  {ROUNDS * len(graphs_there)} replays held against eager runs, {len(wrong)} differ")
    for line in wrong[:20]:
        print("   ", line)


def one_way(folder: str, rows: int, way: str, profiled: int) -> None:
    noted = Captures()
    graphs.logger.addHandler(noted)
    graphs.logger.setLevel(logging.DEBUG)
    config = EngineConfig(max_rows=rows, max_batch=rows, kv_tokens=256 * rows)

    def pool(device: torch.device, runs_first: bool = False, priority: int = 0) -> GraphPool:
        return GraphPool(device, runs_first or way == WAYS[0], priority)

    ahead = AnyOrder if way == WAYS[2] else NothingAhead
    profile = cProfile.Profile() if profiled else nullcontext()
    patched = mock.patch("sonant.engine.runner.GraphPool", pool), mock.patch("sonant.engine.runner.NothingAhead", ahead)
    with patched[0], patched[1], profile:
        engine = sonant.load(folder, device="cuda", config=config, sound="int16")
    print(f"== {way}{', profiled' * bool(profiled)}: {engine.start_times}", flush=True)
    noted.show()
    engine.close()
    if isinstance(profile, cProfile.Profile):
        pstats.Stats(profile).sort_stats("tottime").print_stats(profiled)
        return
    began_s = time.monotonic()
    with StepRig(engine, rows, FRAMES) as rig:
        said = blake2b(digest_size=8)
        for f in rig.runner.model.spec.state:
            if not f.dtype.is_floating_point:
                said.update(rig.runner.rows.fields[f.name].narrow(f.row_dim, 0, rows).cpu().numpy().tobytes())
        compare(rig.runner, rig.rows)
    took_s = time.monotonic() - began_s
    print(f"  digest of what {rows} rows have said: {said.hexdigest()} ({took_s:.1f} s)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--profile", type=int, default=0)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    args: Any = parser.parse_args()
    if args.way is not None:
        return one_way(args.folder, args.rows, args.way, args.profile)
    command = [sys.executable, __file__, args.folder, "--rows", str(args.rows), "--way"]
    for way in WAYS:
        subprocess.run([*command, way], check=False)
    if args.profile:
        subprocess.run([*command, WAYS[1], "--profile", str(args.profile)], check=False)
    return None


if __name__ == "__main__":
    main()
