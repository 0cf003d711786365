"""On a GPU, Higgs Audio V2's whole prefill with the grouped DualFFN kernels and with the usual form in torch, in turn.

    python tests/gpu_dual_ffn.py --folder /tmp/higgs [--shapes 1x64,1x256,16x64] [--out dual_ffn.json]
    python tests/gpu_dual_ffn.py --folder tiny --device cpu --shapes 1x16,2x16 --rounds 2       # to try it

Not a test that pytest collects: it needs a large GPU and a checkpoint of full size, which it writes if there is none.
The usual form gathers each side's positions, computes them and scatters them back (`sonant.bench.kernels.by_index`): it
replaces `ops.dual_norm`, `ops.dual_norm_gated` and `ops.dual_linear_add`, and nothing else differs. Its indices are
computed beforehand, so that it can be a CUDA graph too; with the boolean index of transformers it could not. Half of
each prompt is text, and half a reference's rows of codes.

`graph` is one replay, as the engine runs it; `eager` is without graphs. Times are medians of rounds in which the two
take turns. A kernel's time is what it adds to the time that the device is busy, since ours start before the previous
kernel has ended; on the CPU operators stand in for kernels. `differs` is the largest difference of keys and values,
relative to their largest value.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

import sonant
from sonant import Engine, EngineConfig
from sonant.bench.kernels.by_index import ByIndex
from sonant.device_copy import to_device
from sonant.engine.graphs import GraphPool, capture_graph
from sonant.kernels import ops
from sonant.kernels.reference import split_kinds
from sonant.models.base import PrefillItem, PrefillShape
from sonant.models.higgs_audio_v2.config import CODEBOOKS
from sonant.models.higgs_audio_v2.frame import KV
from sonant.models.higgs_audio_v2.layout import Layout
from sonant.models.higgs_audio_v2.model import HiggsAudioV2
from sonant.models.higgs_audio_v2.packed_prompts import PackedPrompts, PackedShape
from sonant.models.higgs_audio_v2.synthetic import write_checkpoint
from sonant.models.prompt import Prompt
from sonant.profiling.kernels import short
from sonant.text_table import grid
from sonant.types import SpeechRequest

REPLACED = ("dual_norm", "dual_norm_gated", "dual_linear_add")
FORMS = ("usual torch", "grouped kernel")
LARGEST = 3
Work = Callable[[], object]


@dataclass(frozen=True)
class Figures:
    """Figures of one prefill in one form."""

    shape: str
    form: str
    graph_ms: float | None  # None: on the CPU, which has no graphs
    eager_ms: float
    kernels: int
    largest: list[tuple[str, int, float]]  # name, number of launches, ms
    differs: float  # from the other form


class Prefill:
    """Prompts of random text and codes with rows and blocks of their own, which can be prefilled again and again."""

    def __init__(self, engine: Engine, prompts: int, positions: int) -> None:
        assert isinstance(engine.model, HiggsAudioV2)
        self.model, self.device, runner = engine.model, engine.device, engine.loop.runner
        span_blocks = -(-positions // engine.config.block_tokens)
        self.shape = PrefillShape(prompts, positions, span_blocks)
        rng = np.random.default_rng(0)
        staged = self.model.prompter.prompt(SpeechRequest(text="hello", max_frames=1)).staged
        items = []
        for row in range(prompts):
            layout = self._layout(positions + 1, rng)
            prompt = Prompt(length=positions + 1, keys=layout.keys(), staged=staged, max_frames=1, payload=layout)
            runner.rows.stage(row, staged, list(range(1 + row * span_blocks, 1 + (row + 1) * span_blocks)))
            items.append(PrefillItem(row, prompt, 0, positions))
        runner.rows.apply()
        self.blocks = slice(1, 1 + prompts * span_blocks)
        self.packed = to_device(self.model.pack(items, self.shape), self.device)
        kinds = PackedPrompts(self.packed, PackedShape(positions)).kinds()
        self.usual = ByIndex.of(split_kinds(kinds))

    def _layout(self, length: int, rng: np.random.Generator) -> Layout:
        """Text, a reference, text again, and at the end the first row of the generation."""
        text = rng.integers(0, 200, length, np.int32)
        codes = np.full((length, CODEBOOKS), -1, np.int32)
        reference = codes[length // 4 : 3 * length // 4]
        reference[:] = rng.integers(0, self.model.config.codes, reference.shape)
        codes[-1] = self.model.config.stream_bos
        return Layout(text, codes, length)

    @contextmanager
    def form(self, name: str) -> Iterator[None]:
        with ExitStack() as patches:
            for op in REPLACED if name == FORMS[0] else ():
                patches.enter_context(mock.patch.object(ops, op, getattr(self.usual, op)))
            yield

    def run(self, packed: Tensor) -> Tensor:
        self.model.prefill(packed, self.shape)
        return packed

    def eager(self, form: str) -> None:
        with self.form(form):
            self.run(self.packed)

    def written(self) -> Tensor:
        """All keys and values of the prompts, [layers, 2, prompts, positions, …], without the unused ends of blocks."""
        kv = self.model.memory.kv[KV][:, :, self.blocks].float()
        rows = kv.unflatten(2, (self.shape.prompts, -1)).flatten(3, 4)
        return rows[:, :, :, : self.shape.positions].clone()


@torch.inference_mode()
def measure(engine: Engine, prompts: int, positions: int, rounds: int) -> list[Figures]:
    work = Prefill(engine, prompts, positions)
    cuda = engine.device.type == "cuda"
    eager: dict[str, Work] = {form: lambda form=form: work.eager(form) for form in FORMS}
    written, graphs, captured = {}, dict[str, Work](), []  # `captured` keeps what graphs read
    for form in FORMS:
        eager[form]()
        written[form] = work.written()
        if cuda:
            with work.form(form):
                captured.append(capture_graph(form, work.run, work.packed.clone(), GraphPool(engine.device)))
            graphs[form] = captured[-1].graph.replay
    one, other = written.values()
    differs = float((one - other).abs().max() / one.abs().max())
    eager_ms, graph_ms = by_turns(eager, rounds, cuda), by_turns(graphs, rounds, cuda)
    found = []
    for form in FORMS:
        kernels = kernels_of(graphs.get(form, eager[form]), cuda)
        largest = [(short(name, 60), n, ms) for name, (n, ms) in sorted(kernels.items(), key=lambda k: -k[1][1])]
        count = sum(n for n, _ in kernels.values())
        shape = f"{prompts} x {positions}"
        found.append(Figures(shape, form, graph_ms.get(form), eager_ms[form], count, largest[:LARGEST], differs))
    return found


def by_turns(works: dict[str, Work], rounds: int, cuda: bool) -> dict[str, float]:
    """The median time of each, in ms; they take turns."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            if cuda:
                torch.cuda.synchronize()
            began_s = time.perf_counter()
            work()
            if cuda:
                torch.cuda.synchronize()
            times[name].append(1e3 * (time.perf_counter() - began_s))
    return {name: statistics.median(values) for name, values in times.items()}


def kernels_of(work: Work, cuda: bool) -> dict[str, tuple[int, float]]:
    """How often each kernel ran in one run, and the ms that it added to the time that the device was busy."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    for _ in range(2):  # the first profile of a process misses some
        with profile(activities=activities) as profiler:
            work()
            if cuda:
                torch.cuda.synchronize()
    if not cuda:
        return {e.key: (e.count, e.self_cpu_time_total / 1e3) for e in profiler.key_averages()}
    count, added_ms, busy_until = Counter[str](), Counter[str](), 0.0
    on_device = (e for e in profiler.events() if e.device_type == DeviceType.CUDA)
    for event in sorted(on_device, key=lambda e: e.time_range.start):
        count[event.name] += 1
        added_ms[event.name] += max(0.0, event.time_range.end - max(event.time_range.start, busy_until)) / 1e3
        busy_until = max(busy_until, event.time_range.end)
    return {name: (n, added_ms[name]) for name, n in count.items()}


def table(found: list[Figures]) -> str:
    head = ("prompts x positions", "form", "graph ms", "eager ms", "kernels", "differs")
    rows = [
        (f.shape, f.form, "-" if f.graph_ms is None else f"{f.graph_ms:.3f}", f"{f.eager_ms:.3f}", str(f.kernels),
         f"{f.differs:.1e}")
        for f in found
    ]  # fmt: skip
    named = [("largest kernels of", "form", "ms", "times", "kernel")]
    named += [(f.shape, f.form, f"{ms:.3f}", str(times), name) for f in found for name, times, ms in f.largest]
    return grid([head, *rows], words_left=True) + "\n\n" + grid(named, words_left=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--shapes", default="1x64,1x256,16x64", help="prompts x positions")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if not (args.folder / "config.json").exists():
        write_checkpoint(args.folder, kind="base", size="3b", device=torch.device("cuda"))
    shapes = [tuple(map(int, shape.split("x"))) for shape in args.shapes.split(",")]
    rows = max(prompts for prompts, _ in shapes)
    engine = sonant.load(args.folder, device=args.device, config=EngineConfig(max_rows=rows, warm_rows=1))
    engine.close()  # so that its rows, blocks and cache can be used here
    found = [figures for prompts, positions in shapes for figures in measure(engine, prompts, positions, args.rounds)]
    print(table(found))
    if args.out:
        args.out.write_text(json.dumps([asdict(f) for f in found], indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
