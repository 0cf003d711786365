"""On a GPU, Qwen3-TTS 1.7B with random weights: ms of talker and predictor at some rows, with and without each change.

    python tests/gpu_predictor.py --folder /tmp/qwen17 [--rows 64,1,256] [--frames 30] [--out tiles.json]

Not a test that pytest collects. The checkpoint is written if there is none. Kernels in CUDA C++ are compiled meanwhile,
and each is held against float32; so are the predictor's logits. What is wrong is said with WRONG. For every number of
rows tiles are searched for in the model's own parts: all products by CUDA C++ first, then one after the other in each
tile, with the others as they were found best. At last both parts are timed in each way. Times are of CUDA graphs.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import sonant
from sonant import EngineConfig
from sonant.bench.engine.step_rig import StepRig
from sonant.engine.engine import Engine
from sonant.kernels import ops, reference, tuning
from sonant.kernels.cuda import driver, few_rows
from sonant.kernels.cuda import frame_pass as whole_pass
from sonant.kernels.cuda.compiler import build
from sonant.kernels.gpu import gpu_of
from sonant.kernels.triton import frame_pass as triton_pass
from sonant.kernels.triton import gemv, small_m_gemm
from sonant.models.qwen3_tts.synthetic import write_checkpoint
from tile_search import Parts, Search, Tiles, by_tiles, products

DEVICE = torch.device("cuda")
PAGES = 11, 9, 7
_CARVEOUT = 9  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT


@contextmanager
def late() -> Iterator[None]:
    """Triton's products let the next kernel start after they have asked for their input."""
    options = {"PDL": 2, "launch_pdl": True}
    with ExitStack() as left:
        for module in (gemv, small_m_gemm):
            left.enter_context(mock.patch.object(module, "launch_options", lambda on: dict(options)))
        yield


@contextmanager
def carveout(percent: int) -> Iterator[None]:
    """Of all Triton kernels that were loaded: is it their different shares of shared memory that keep them apart?"""

    def ask(value: int) -> None:
        for kernel in gc.get_objects():
            if type(kernel).__name__ == "CompiledKernel" and kernel.function:
                driver._driver().cuFuncSetAttribute(driver.ctypes.c_void_p(kernel.function), _CARVEOUT, value)

    ask(percent)
    try:
        yield
    finally:
        ask(-1)


@contextmanager
def without_attention() -> Iterator[None]:
    """What it costs: its output is whatever lies there."""

    def nothing(qkv: Tensor, heads: Any, cache: Tensor, first: int) -> Tensor:
        return qkv.new_empty(*qkv.shape[:2], heads.heads, cache.shape[-1])

    pick = ops.pick
    with mock.patch.object(ops, "pick", lambda op, on: nothing if op == "short_attention" else pick(op, on)):
        yield


@contextmanager
def one_kernel(pages: int) -> Iterator[None]:
    """A pass of one row, with so many pages of weights ahead."""
    kernel = whole_pass.pass_kernel
    with (
        mock.patch.object(triton_pass, "is_measured", lambda *given: True),
        mock.patch.object(whole_pass, "pass_kernel", lambda layers: kernel(layers, pages)),
    ):
        yield


def clocked(engine: Engine, pages: int) -> None:
    """Cycles of the stages of a pass in one kernel, and of the barriers between them."""
    predictor = engine.model.modules.talker.code_predictor
    model, head = predictor.model, predictor.lm_head[0].weight
    stack, shape = model.as_frame_stack(), model.shape
    x = torch.randn(1, 1, shape.hidden, device=DEVICE, dtype=head.dtype)
    cache = torch.zeros(shape.layers, 2, 1, 16, shape.kv_heads, shape.head_dim, device=DEVICE, dtype=head.dtype)
    if stack is None or not whole_pass.fits(stack, x, cache, head):
        print("a pass is no single kernel here")
        return
    clock = torch.zeros(128, 4 * shape.layers, 2, dtype=torch.int64, device=DEVICE)
    with one_kernel(pages):
        for _ in range(3):
            whole_pass.frame_pass(stack, x, *model.rotations_at(range(9, 10), x.dtype), cache, 9, head, clock)
    before, after = clock.double().cpu().unbind(-1)
    told = []
    for n, name in enumerate(("attention, o", "gate, up", "down", "qkv")):
        of = torch.arange(n + 1, 4 * shape.layers, 4)
        stage, wait = before[:, of] - after[:, of - 1], after[:, of] - before[:, of]
        told.append(f"{name} {stage.median():.0f} + {wait.amin(0).median():.0f} to {wait.median():.0f}")
    print(f"{pages} pages, cycles of stages and barriers (least, median): {', '.join(told)}", flush=True)


class Probe:
    """Given codes in place of drawn ones, and what the predictor thought of each."""

    def __init__(self, code: Tensor) -> None:
        self.code, self.logits = code, list[Tensor]()

    def pick(self, logits: Tensor, uniform: Tensor, mask: Any = None, lookup: Any = None) -> Tensor:
        self.logits.append(logits.float().clone())
        if lookup is not None:
            lookup.fetch(self.code)
        return self.code


def logits_of(predictor: Any, rows: int, dtype: torch.dtype) -> Tensor:
    width = predictor.model.codec_embedding[0].weight.shape[1]
    draw = torch.Generator().manual_seed(1)
    hidden, first = (torch.randn(rows, width, generator=draw).to(DEVICE, torch.bfloat16).to(dtype) for _ in range(2))
    probe = Probe(torch.arange(7, 7 + rows, device=DEVICE))
    predictor.generate(hidden, first, torch.zeros(rows, predictor.groups - 1, device=DEVICE), probe)
    return torch.stack(probe.logits)


def check_logits(engine: Engine, rows: int, ways: dict[str, AbstractContextManager[None]]) -> None:
    predictor = engine.model.modules.talker.code_predictor
    exact = deepcopy(predictor).float()
    exact.prepare()
    with mock.patch.object(ops, "pick", lambda op, on: getattr(reference, op)):
        expected = logits_of(exact, rows, torch.float32)
    for name, way in ways.items():
        with way:
            got, again = (logits_of(predictor, rows, torch.bfloat16) for _ in range(2))
        error = float((got - expected).norm() / expected.norm())
        wrong = "" if error < 0.04 and torch.equal(got, again) else " WRONG"
        print(f"{rows} rows, {name}: logits {error:.4f} from float32{wrong}", flush=True)


def check_products(rows: int) -> None:
    """Every tile against float32, ten times the same bits; one row less than there is room for."""
    worst, seen = 0.0, 0
    for product in products(rows):
        draw = torch.Generator(DEVICE).manual_seed(3)
        planes = 2 if product.gated else 1
        shape = (rows - 1, product.depth), (planes * product.columns, product.depth), (rows - 1, product.columns)
        x, weight, before = (torch.randn(*s, device=DEVICE, generator=draw).bfloat16() for s in shape)
        weight *= product.depth**-0.5
        gain = torch.randn(product.depth, device=DEVICE, generator=draw).bfloat16()
        given: tuple[Any, ...] = (x, weight, before)
        op = "linear_add"
        if product.norm:
            op, given = "norm_gated" if product.gated else "norm_linear", (x, gain, 1e-6, weight)
        wide = [v.float() if isinstance(v, Tensor) else v for v in given]
        expected = getattr(reference, op)(*wide)
        for tile in product.tiles():
            made = [getattr(gemv, op)(*given, tile=tile) for _ in range(10)]
            error = float((made[0].float() - expected).norm() / expected.norm())
            worst, seen = max(worst, error), seen + 1
            if not error < 6e-3 or not all(torch.equal(made[0], other) for other in made):
                print(f"WRONG: {product} {tile}: {error:.4f}", flush=True)
    print(f"{rows - 1} rows: {seen} kernels at most {worst:.4f} from float32", flush=True)


def measure(parts: Parts, rows: int, ways: dict[str, list[Callable[[], Any]]]) -> None:
    for name, patches in ways.items():
        with ExitStack() as left:
            for patch in patches:
                left.enter_context(patch())
            line = ", ".join(f"{part} {parts.ms(part):.3f}" for part in ("talker", "predictor"))
        print(f"{rows:3} rows, {name:24}: {line} ms", flush=True)


def build_all(rows: list[int]) -> None:
    gpu = gpu_of(DEVICE)
    assert gpu is not None
    programs = {
        repr(kernel.program): kernel.program
        for count in rows if count > 1 for p in products(count) for tile in p.tiles()
        for kernel in [few_rows.kernel_for(tile, count, norm=p.norm, gated=p.gated)]
    }  # fmt: skip
    programs |= {str(pages): whole_pass.pass_kernel(5, pages).program for pages in PAGES}
    began_s = time.perf_counter()
    with ThreadPoolExecutor(14) as pool:
        list(pool.map(lambda program: build(program, gpu.arch), programs.values()))
    print(f"{len(programs)} kernels compiled in {time.perf_counter() - began_s:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rows", default="64,1,256")
    parser.add_argument("--frames", type=int, default=30)
    parser.add_argument("--size", default="1.7b")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--limit", type=float, default=150.0, help="seconds after which it gives up")
    args = parser.parse_args()
    faulthandler.dump_traceback_later(args.limit, exit=True)  # blocks that wait for each other may do so for ever
    began_s = time.perf_counter()

    def note(name: str) -> None:
        print(f"-- {name}: {time.perf_counter() - began_s:.1f} s since the start", flush=True)

    rows = [int(n) for n in args.rows.split(",")]
    with ThreadPoolExecutor(1) as aside:
        built = aside.submit(build_all, rows)
        if not (args.folder / "config.json").exists():
            write_checkpoint(args.folder, kind="custom_voice", size=args.size, device=str(DEVICE))
            note("written")
        config = EngineConfig(max_rows=max(rows), max_batch=max(rows), warm_rows=1, kv_tokens=65_536)
        engine = sonant.load(args.folder, device=str(DEVICE), config=config)
        engine.close()
        note("loaded")
        built.result()
    best: dict[str, Any] = {}
    with torch.inference_mode():
        for count in rows:
            if count > 1:
                check_products(count)
            with StepRig(engine, count, args.frames) as rig:
                parts, ways = Parts(rig), dict[str, list[Callable[[], Any]]]({"as it is": []})
                tiles: Tiles = {}
                if count > 1:
                    for part in ("predictor", "talker"):
                        tiles |= Search(parts, part, count).run()
                    best |= {p.key: tuning.encode(tiles[p.shape]) for p in products(count) if p.shape in tiles}
                    ways["searched"] = [lambda tiles=tiles: by_tiles(tiles)]
                found = ways[list(ways)[-1]]
                if count > 1 and tiles:
                    early = {shape: replace(tile, stages=1) if tile.cuda else tile for shape, tile in tiles.items()}
                    ways["searched, all early"] = [lambda early=early: by_tiles(early)]
                if count == 1:
                    ways |= {f"one kernel, {n} pages": [lambda n=n: one_kernel(n)] for n in PAGES}
                ways["Triton's next start late"] = [*found, late]
                ways["carve-out 100"] = [*found, lambda: carveout(100)]
                ways["both"] = [*found, late, lambda: carveout(100)]
                ways["no attention"] = [*found, without_attention]
                measure(parts, count, ways)
            changed = by_tiles(tiles) if count > 1 else one_kernel(PAGES[0])
            check_logits(engine, count, {"as it is": by_tiles({}), "changed": changed})
            if count == 1:
                for pages in PAGES:
                    clocked(engine, pages)
            note(f"{count} rows")
    if args.out:
        args.out.write_text(json.dumps(best, indent=1))
    print(json.dumps(best))


if __name__ == "__main__":
    main()
