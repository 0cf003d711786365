"""On a GPU: sixteen frames of all rows and their sound, one after the other, and on two streams at once.

    python tests/gpu_overlap.py --folder /tmp/full [--rows 64,256]

Not a test that pytest collects. It tells what an engine could gain that makes sound beside its frames: a frame's
kernels are small and wait for each other, the codec's are large. Sound has graphs with memory of their own here, since
graphs that share memory must not run at once.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

import sonant
from sonant import Engine, EngineConfig
from sonant.bench.engine.step_rig import StepRig
from sonant.engine.graphs import GraphPool, capture_graph
from sonant.text_table import grid

FRAMES = 16
ROUNDS = 4
Work = tuple[Sequence[torch.cuda.CUDAGraph], int]  # graphs in turn, and the priority of their stream


def wall_ms(works: Sequence[Work]) -> float:
    """Until all are done, each on a stream of its own; the graphs are launched by turns, as steps would."""
    streams = [torch.cuda.Stream(priority=level) for _, level in works]
    best_ms = float("inf")
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        for turn in range(max(len(graphs) for graphs, _ in works)):
            for (graphs, _), stream in zip(works, streams, strict=True):
                if turn < len(graphs):
                    with torch.cuda.stream(stream):
                        graphs[turn].replay()
        torch.cuda.synchronize()
        best_ms = min(best_ms, 1e3 * (time.perf_counter() - began_s))
    return best_ms


def measure(engine: Engine, count: int) -> tuple[str, ...]:
    with StepRig(engine, count, 60) as rig, torch.inference_mode():
        step = rig.runner.frame[rig.requests[0].prompt.variant]
        step(rig.rows)
        frames = [step.captured[next(size for size in step.captured if size >= count)].graph] * FRAMES
        run: Callable[[torch.Tensor], torch.Tensor] = rig.runner.codec[FRAMES].run
        groups = [torch.tensor([r.row for r in group], device="cuda") for group in rig.groups(FRAMES)]
        pool = GraphPool(engine.device)
        sounds = [capture_graph("sound", run, group, pool).graph for group in groups]
        found = [wall_ms([(graphs, 0)]) for graphs in (frames, sounds, [*frames, *sounds])]
        found += [wall_ms([(frames, level), (sounds, 0)]) for level in (0, -1)]
        return str(count), *(f"{ms / FRAMES:.3f}" for ms in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rows", default="64,256")
    args = parser.parse_args()
    rows = [int(n) for n in args.rows.split(",")]
    config = EngineConfig(max_rows=max(rows), warm_rows=max(rows), chunk_s=(0.08 * FRAMES,))
    engine = sonant.load(args.folder, device="cuda", config=config)
    engine.close()
    titles = ("rows", "ms a frame: frames", "sound", "in turn", "at once", "at once, frames first")
    print(grid([titles, *(measure(engine, count) for count in rows)]), flush=True)


if __name__ == "__main__":
    main()
