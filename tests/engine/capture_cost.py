"""How long Python takes for each launch while graphs are captured, ours and Triton's, measured without a GPU.

    python tests/engine/capture_cost.py [--size 1.7b] [--rounds 3] [--profile 40]

Every step that an engine on an H200 captures runs on the meta device, as in its rehearsal. Launches run Triton's own
code up to the point where C would call the driver, which is left out, as are streams and graphs: the result is the
share of a capture that this repository can change. A first round fills all caches and is not counted. Torch's ops on
the meta device are not those of a GPU, so compare two runs with the same torch.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import struct
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.pop("TRITON_INTERPRET", None)

import torch
from no_driver import GPU, NoDriver
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from sonant.config import EngineConfig
from sonant.engine.compile_ahead import CompileJob
from sonant.engine.graph_warmup import GraphWarmup, PendingGraph
from sonant.engine.rehearsal import runner_without_memory
from sonant.engine.room import GpuMemory
from sonant.kernels.cuda.kernel import CudaKernel
from sonant.kernels.gpu import planning_for
from sonant.models.qwen3_tts.synthetic.shapes import codec_shapes, model_shapes
from sonant.models.qwen3_tts.synthetic.writer import write_configs

MEMORY = GpuMemory(GPU.name, GPU.capability, 132, 141 << 30, 130 << 30)
ITEM_BYTES = {"BF16": 2, "F32": 4}


class Launched:
    """Stands in for a compiled kernel, and counts launches."""

    function = packed_metadata = None

    def __init__(self) -> None:
        self.count = 0

    def launch_metadata(self, *_: Any) -> None:
        return None

    def run(self, *_: Any) -> None:
        self.count += 1


def write_empty(path: Path, shapes: Mapping[str, Any], kind: str) -> None:
    """Write a sparse safetensors file, whose values are a hole."""
    header, at = dict[str, Any](), 0
    for name, shape in shapes.items():
        size = ITEM_BYTES[kind] * torch.Size(shape).numel()
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        file.truncate(8 + len(head) + at)


@contextmanager
def model_folder(size: Any) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = write_configs(folder, "custom_voice", size, None)
        write_empty(folder / "model.safetensors", model_shapes(config), "BF16")
        write_empty(folder / "speech_tokenizer" / "model.safetensors", codec_shapes(config.codec), "F32")
        yield folder


@contextmanager
def launches_counted() -> Iterator[Launched]:
    launched = Launched()

    def compiled(kernel: JITFunction[Any], key: str, signature: Any, device: int, *_: Any) -> Any:
        return kernel.device_caches[device][0].setdefault(key, launched)

    def launch(kernel: CudaKernel, device: Any, grid: Any, *values: Any) -> None:
        kernel.arguments.pack(*values)
        launched.run()

    driver.set_active(NoDriver())  # type: ignore[no-untyped-call]
    with mock.patch.object(JITFunction, "_do_compile", compiled), mock.patch.object(CudaKernel, "launch", launch):
        yield launched


@torch.inference_mode()
def run_all(graphs: list[PendingGraph], launched: Launched) -> dict[str, tuple[int, int, float]]:
    """Graphs, launches, and seconds of this thread, by kind of step."""
    told: dict[str, tuple[int, int, float]] = defaultdict(lambda: (0, 0, 0.0))
    for graph in graphs:
        before, began_s = launched.count, time.thread_time()
        step, given = graph.step.captures(graph.bucket)
        step(given)
        kind = graph.step.name.split()[0]
        count, launches, spent_s = told[kind]
        told[kind] = count + 1, launches + launched.count - before, spent_s + time.thread_time() - began_s
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="1.7b")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", type=int, default=0, help="so many lines of a profile of one more round")
    args = parser.parse_args()
    with model_folder(args.size) as folder, planning_for(GPU), launches_counted() as launched:
        config = asdict(EngineConfig())
        job = CompileJob(str(folder), config, "bfloat16", "bfloat16", asdict(MEMORY), 1, "", "int16")
        graphs = list(GraphWarmup(runner_without_memory(job).graphs.wanted(), None).pending)
        began_s = time.thread_time()
        run_all(graphs, launched)
        print(f"first round {time.thread_time() - began_s:.2f} s")
        rounds = [run_all(graphs, launched) for _ in range(args.rounds)]
        for kind, (count, launches, _) in rounds[0].items():
            each = sorted(told[kind][2] for told in rounds)
            per_launch = 1e6 * each[0] / max(1, launches)
            spent = f"{each[0]:.3f} to {each[-1]:.3f} s, {per_launch:.1f} µs each"
            print(f"{kind:<8} {count:4} graphs {launches:6} launches  {spent}")
        print(f"all      {min(sum(s for _, _, s in told.values()) for told in rounds):.3f} s")
        if args.profile:
            profile = cProfile.Profile()
            profile.runcall(run_all, graphs, launched)
            pstats.Stats(profile).sort_stats("tottime").print_stats(args.profile)


if __name__ == "__main__":
    main()
