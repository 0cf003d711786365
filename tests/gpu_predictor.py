"""On a GPU, products of Qwen3-TTS 1.7B with random weights: ms of the predictor and of the talker's, in each tile.

    python tests/gpu_predictor.py [--rows 64,1,256] [--seconds 36] [--out tiles.json]

Not a test that pytest collects. Every tile of the kernels in CUDA C++ is held against float32, and so are the
predictor's logits; what is wrong is said with WRONG. Then tiles are searched for in the whole predictor (without its
sampling) and in 14 layers of the talker (without attention): all products by CUDA C++ first, then one after the other
in each tile, with the others as they were found best. At one row the pass in one kernel is tried. Times are of CUDA
graphs.
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
from typing import Any, cast
from unittest import mock

import torch
from torch import Tensor, nn

from sonant.kernels import ops, reference, tuning
from sonant.kernels.cuda import driver, few_rows
from sonant.kernels.cuda import frame_pass as whole_pass
from sonant.kernels.cuda.compiler import build
from sonant.kernels.gpu import gpu_of
from sonant.kernels.triton import frame_pass as triton_pass
from sonant.kernels.triton import gemv, small_m_gemm
from sonant.models.qwen3_tts.config import DecoderStackConfig
from sonant.models.qwen3_tts.predictor import CodePredictor, NoDraw
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


def clocked(predictor: CodePredictor, pages: int) -> None:
    """Cycles of the stages of a pass in one kernel, and of the barriers between them."""
    model, head = predictor.model, cast(nn.Linear, predictor.lm_head[0]).weight
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


def check_logits(predictor: CodePredictor, rows: int, ways: dict[str, AbstractContextManager[None]]) -> None:
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


def check_products(rows: int) -> bool:
    """Every tile against float32, ten times the same bits; one row less than there is room for."""
    worst, seen, right = 0.0, 0, True
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
        for tile in (replace(tile, fold=fold) for tile in product.tiles() for fold in (1, 2)):
            made = [getattr(gemv, op)(*given, tile=tile) for _ in range(10)]
            error = float((made[0].float() - expected).norm() / expected.norm())
            worst, seen = max(worst, error), seen + 1
            if not error < 6e-3 or not all(torch.equal(made[0], other) for other in made):
                print(f"WRONG: {product} {tile}: {error:.4f}", flush=True)
                right = False
    print(f"{rows - 1} rows: {seen} kernels at most {worst:.4f} from float32", flush=True)
    return right


def measure(parts: Parts, rows: int, ways: dict[str, list[Callable[[], Any]]]) -> None:
    for name, patches in ways.items():
        with ExitStack() as left:
            for patch in patches:
                left.enter_context(patch())
            told = ", ".join(f"{part} {parts.ms(part):.3f}" for part in parts.runs)
        print(f"{rows:3} rows, {name:24}: {told} ms", flush=True)


def build_all(rows: list[int]) -> None:
    gpu = gpu_of(DEVICE)
    assert gpu is not None
    programs = {str(pages): whole_pass.pass_kernel(5, pages).program for pages in PAGES if 1 in rows}
    for count in rows:
        for p in products(count) if count > 1 else []:
            for tile in p.tiles():
                for fold in (1, 2):
                    kernel = few_rows.kernel_for(replace(tile, fold=fold), count, norm=p.norm, gated=p.gated)
                    programs[repr(kernel.program)] = kernel.program
    began_s = time.perf_counter()
    with ThreadPoolExecutor(15) as pool:
        list(pool.map(lambda program: build(program, gpu.arch), programs.values()))
    print(f"{len(programs)} kernels compiled in {time.perf_counter() - began_s:.1f} s", flush=True)


def random_predictor() -> CodePredictor:
    config = DecoderStackConfig(2048, 1024, 3072, 5, 16, 8, 128, 1e-6, 1e6, 4096)
    with DEVICE:
        made = CodePredictor(config, 16, 2048)
    made = made.to(torch.bfloat16).eval()
    for name, value in made.named_parameters():
        value.copy_(torch.ones_like(value) if "norm" in name else _random(*value.shape))
    made.prepare()
    return made


class Talker:
    """The products of some of its layers."""

    def __init__(self, layers: int = 14) -> None:
        shapes = (2048,), (4096, 2048), (2048, 2048), (2048,), (12288, 2048), (2048, 6144)
        self.layers = [[_random(*shape) for shape in shapes] for _ in range(layers)]

    def run(self, x: Tensor, attended: Tensor) -> Tensor:
        for first, qkv, out, second, gate_up, down in self.layers:
            ops.norm_linear(x, first, 1e-6, qkv)
            x = ops.linear_add(attended, out, x)
            x = ops.linear_add(ops.norm_gated(x, second, 1e-6, gate_up), down, x)
        return x


def _random(*shape: int) -> Tensor:
    return (torch.randn(*shape, device=DEVICE) * shape[-1] ** -0.5).bfloat16()


def parts_of(predictor: CodePredictor, talker: Talker, rows: int) -> Parts:
    hidden, first, x, attended = (_random(rows, 2048) for _ in range(4))
    uniforms, code = torch.zeros(rows, 15, device=DEVICE), torch.arange(7, 7 + rows, device=DEVICE)
    return Parts(
        {
            "predictor": lambda: predictor.generate(hidden, first, uniforms, NoDraw(code)),
            "talker": lambda: talker.run(x.view(rows, 1, 2048).clone(), attended.view(rows, 1, 2048)),
        }
    )


def try_one_row(predictor: CodePredictor, parts: Parts) -> None:
    ways: dict[str, list[Callable[[], Any]]] = {"as it is": []}
    ways |= {f"one kernel, {n} pages": [lambda n=n: one_kernel(n)] for n in PAGES}
    ways |= {"next start late": [late], "carve-out 100": [lambda: carveout(100)], "no attention": [without_attention]}
    check_logits(predictor, 1, {"as it is": by_tiles({}), "one kernel": one_kernel(PAGES[0])})
    for pages in PAGES:
        clocked(predictor, pages)
    measure(Parts({"predictor": parts.runs["predictor"]}), 1, ways)


def try_rows(predictor: CodePredictor, parts: Parts, rows: int) -> dict[str, Any]:
    if not check_products(rows):
        return {}
    tiles: Tiles = {}
    for part in parts.runs:
        tiles |= Search(parts, part, rows).run()
    check_logits(predictor, rows, {"as it is": by_tiles({}), "searched": by_tiles(tiles)})

    def ways_of(**changes: int) -> list[Callable[[], Any]]:
        return [lambda: by_tiles({k: replace(t, **changes) if t.cuda else t for k, t in tiles.items()})]

    ways = {"as it is": [], "searched": ways_of(), "all early": ways_of(stages=1), "sums are read": ways_of(fold=2)}
    ways |= {"carve-out 100": [*ways_of(), lambda: carveout(100)], "no attention": [*ways_of(), without_attention]}
    measure(parts, rows, ways)
    return {p.key: tuning.encode(tiles[p.shape]) for p in products(rows) if p.shape in tiles}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="64,1,256")
    parser.add_argument("--seconds", type=float, default=36.0, help="after which nothing new is begun")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    faulthandler.dump_traceback_later(args.seconds + 12, exit=True)  # blocks may wait for each other for ever
    began_s, rows = time.perf_counter(), [int(n) for n in args.rows.split(",")]
    best: dict[str, Any] = {}
    with ThreadPoolExecutor(1) as aside, torch.inference_mode():
        built = aside.submit(build_all, rows)
        predictor, talker = random_predictor(), Talker()
        built.result()
        print(f"-- ready after {time.perf_counter() - began_s:.1f} s", flush=True)
        for count in rows:
            if time.perf_counter() - began_s > args.seconds:
                print(f"{count} rows: no time")
                continue
            parts = parts_of(predictor, talker, count)
            if count == 1:
                try_one_row(predictor, parts)
            else:
                best |= try_rows(predictor, parts, count)
            print(f"-- {count} rows: {time.perf_counter() - began_s:.1f} s since the start", flush=True)
    if args.out:
        args.out.write_text(json.dumps(best, indent=1))
    print(json.dumps(best))


if __name__ == "__main__":
    main()
