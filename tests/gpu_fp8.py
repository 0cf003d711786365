"""On a GPU: FP8 weights compared with bfloat16. Are their products right, and what do they save?

    python tests/gpu_fp8.py --folder /tmp/full [--parts check,kernels,steps,saturated] [--rows 1,64,256] [--out a.json]

Not a test that pytest collects: it needs a Hopper GPU, and for steps a checkpoint of full size, which it writes if
there is none. Parts:
- check: every product of the 1.7B model against float32 with the same eight bits, with the worst error for each number
  of rows; with many rows the input is rounded, too. Also the two-sided products and the middle of a local layer.
- kernels: microseconds of each product in a graph with all that is around it, weights never in the cache: bf16; fp8 as
  it is chosen (from 17 rows on both sides have eight bits); fp8 by the library's product; in the last column for one
  row twice as many elements for a thread, for 16 rows our product with eight bits on both sides.
- steps: a step by part for bf16, fp8, and fp8 with keys and values of eight bits, with the floor of its bytes, from
  `sonant.bench.engine.breakdown`.
- saturated: files only, twice as many requests as rows, of ten seconds each, for the same three.
`--engines fp8,fp8-wide-codec` compares the codec's convolutions in eight bits with those in sixteen.
Kernels of the first two parts are compiled on all cores before the GPU is used.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import sonant
from sonant import EngineConfig
from sonant.bench.engine import offline
from sonant.bench.engine.breakdown import Breakdown, break_down
from sonant.bench.engine.device_clock import copy_bandwidth
from sonant.bench.kernels.case import Call
from sonant.bench.kernels.tune_cases import ProductCase, copied, normal, random_weight
from sonant.collector import freeze_what_is_alive
from sonant.config import KVCacheType, Quantization
from sonant.kernels import reference
from sonant.kernels.gpu import Gpu, planning_for
from sonant.kernels.recorded_launches import KernelForm, LaunchRecorder, launches_recorded
from sonant.kernels.reference import Heads, Sides, split_kinds
from sonant.kernels.triton import dual_ffn, gemv, local_out, tiled_tile
from sonant.kernels.tuning import LIBRARY, Tile
from sonant.models.qwen3_tts import checkpoint
from sonant.models.qwen3_tts.synthetic.writer import write_checkpoint
from sonant.text_table import grid

H200 = Gpu("NVIDIA H200", (9, 0))
SHAPES = {  # place: op, depth, columns
    "talker qkv": ("norm_linear", 2048, 4096),
    "talker o": ("linear_add", 2048, 2048),
    "talker gate, up": ("norm_gated", 2048, 6144),
    "talker down": ("linear_add", 6144, 2048),
    "predictor qkv": ("norm_linear", 1024, 4096),
    "predictor o": ("linear_add", 2048, 1024),
    "predictor gate, up": ("norm_gated", 1024, 3072),
    "predictor down": ("linear_add", 3072, 1024),
}
CHECKED_ROWS = (1, 2, 16, 17, 32, 64, 65, 128, 256)
TIMED_ROWS = (1, 16, 32, 64, 128, 256, 512)
KINDS: tuple[Quantization | None, ...] = (None, "fp8")
ENGINES: dict[str, tuple[Quantization | None, KVCacheType | None, bool]] = {  # weights, cache, codec in int8
    "bf16": (None, None, False),
    "fp8": ("fp8", None, True),
    "fp8-cache": ("fp8", "fp8", True),
    "fp8-wide-codec": ("fp8", None, False),
}
USUAL_ENGINES = "bf16,fp8,fp8-cache"
SATURATED_FRAMES = 125
FEW_ERROR, MANY_ERROR = 1e-2, 5e-2
ROTATED_BYTES = 96 << 20
EPS = 1e-6


def product(where: str, rows: int, kind: Quantization | None) -> ProductCase:
    op, depth, columns = SHAPES[where]
    return ProductCase(op, where, rows, depth, columns, quantize=kind)


def beside_products(device: torch.device) -> Iterator[tuple[str, Callable[..., Tensor], Callable[..., Tensor], Call]]:
    """Products of other layers, as name, kernel, reference and arguments."""
    for rows in (32, 512):
        kinds = torch.arange(rows) >= rows // 2
        split = split_kinds(kinds.int()[None].to("cpu"))
        split = type(split)(*(t.to(device) for t in split))
        x, gains = normal(device, 1, rows, 3072), Sides(normal(device, 3072), normal(device, 3072))
        up, down = (
            Sides(*(random_weight(device, *shape, "fp8") for _ in range(2))) for shape in ((16384, 3072), (3072, 8192))
        )
        call = Call((x, split, gains, EPS, up), {})
        yield f"dual gate, up {rows}", dual_ffn.dual_norm_gated, reference.dual_norm_gated, call
        call = Call((normal(device, 1, rows, 8192), split, down, x), {})
        yield f"dual down {rows}", dual_ffn.dual_linear_add, reference.dual_linear_add, call
    for batch in (2, 6, 40):
        heads = Heads(None, None, normal(device, 1, 11, 1, 128), normal(device, 1, 11, 1, 128), 16, 2, EPS)
        weight = random_weight(device, 1024, 2048, "fp8")
        call = Call((normal(device, batch, 11, 20 * 128), heads, weight, normal(device, batch, 11, 1024)), {})
        yield f"local o {batch * 11}", local_out.local_attention_add, reference.local_attention_add, call


def fresh(call: Call) -> tuple[Any, ...]:
    """Copies of the arguments, since the last one may be overwritten."""
    return tuple(a.clone() if isinstance(a, Tensor) else a for a in call.args)


def wide(call: Call) -> tuple[Any, ...]:
    def as_float(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.float() if value.is_floating_point() else value
        if isinstance(value, Heads):
            return Heads(*map(as_float, value))
        return Sides(*map(as_float, value)) if isinstance(value, Sides) else value

    return tuple(map(as_float, call.args))


def calls_of(parts: set[str]) -> Iterator[tuple[ProductCase, Tile | None]]:
    """Every product that is run, with the tile that it is run with (None: the usual choice)."""
    for where in SHAPES:
        for rows in CHECKED_ROWS if "check" in parts else ():
            yield product(where, rows, "fp8"), None
        for rows in TIMED_ROWS if "kernels" in parts else ():
            for kind in KINDS:
                yield product(where, rows, kind), None
            if rows > 1:
                case = product(where, rows, "fp8")
                yield case, LIBRARY
                yield case, tiled_tile.rule(rows, case.depth, case.columns, case.gated)


def compile_all(parts: set[str]) -> None:
    """Compile what the wrappers would launch, which is found on tensors without memory, without using the GPU."""
    forms: list[KernelForm] = []
    recorder, meta = LaunchRecorder(H200, forms.append), torch.device("meta")
    with torch.inference_mode(), planning_for(H200), launches_recorded(recorder):
        for case, tile in calls_of(parts):
            case.run(case.make(meta), tile)
            if case.rows == 1:
                with mock.patch.object(gemv, "_VECTORS", 128):
                    case.run(case.make(meta), tile)
        for _, kernel, _, call in beside_products(meta) if "check" in parts else ():
            kernel(*call.args)
    began_s = time.perf_counter()
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("fork")) as pool:
        list(pool.map(compile_one, forms))
    print(f"compiled {len(forms)} kernels in {time.perf_counter() - began_s:.1f} s", flush=True)


def compile_one(form: KernelForm) -> str:
    return form.compile(H200)


def check(device: torch.device) -> dict[str, float]:
    errors: dict[str, float] = {}
    for where in SHAPES:
        for rows in CHECKED_ROWS:
            case = product(where, rows, "fp8")
            call = case.make(device)
            expected = getattr(reference, case.op)(*wide(call))
            for attempt in range(2):  # the second finds the counters as the first left them
                got = case.run(Call(fresh(call), {}), None).float()
                error = float((got - expected).norm() / expected.norm())
                name = f"{rows} rows"
                errors[name] = max(errors.get(name, 0.0), error)
                if not error < (MANY_ERROR if case.many else FEW_ERROR):
                    print(f"WRONG: {where}, {rows} rows, attempt {attempt}: relative error {error:.2e}")
    for name, kernel, plain, call in beside_products(device):
        expected = plain(*wide(call))
        got = kernel(*fresh(call)).float()
        errors[name] = float((got - expected).norm() / expected.norm())
        if not errors[name] < 2 * FEW_ERROR:
            print(f"WRONG: {name}: relative error {errors[name]:.2e}")
    print(grid([("products, fp8 against fp32", "worst relative error"), *((n, f"{e:.2e}") for n, e in errors.items())]))
    return errors


def call_us(case: ProductCase, device: torch.device, tile: Tile | None) -> float:
    """Microseconds of one call among many in a graph, with weights that are in no cache."""
    call = case.make(device)
    copies = min(64, 1 + ROTATED_BYTES // case.streamed_bytes)
    at = case.weight_at
    args = [(*call.args[:at], copied(call.args[at]), *call.args[at + 1 :]) for _ in range(copies)]
    count = max(32, copies)

    def many() -> None:
        for n in range(count):
            case.run(Call(args[n % copies], {}), tile)

    return best_us(many, count, replays=6)


def best_us(many: Callable[[], None], count: int, *, replays: int) -> float:
    """Microseconds of one of the `count` calls in `many`, replayed as a graph; the best of all replays."""
    many()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        many()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    least_us = float("inf")
    for _ in range(replays):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        least_us = min(least_us, 1e3 * begin.elapsed_time(end) / count)
    return least_us


def time_kernels(device: torch.device, bandwidth: float) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = [("where", "rows", "floor 8", "bf16", "fp8", "fp8 library", "fp8 another way")]
    for where in SHAPES:
        for rows in TIMED_ROWS:
            small = product(where, rows, "fp8")
            bf16, fp8, library = (
                call_us(product(where, rows, None), device, None),
                call_us(small, device, None),
                call_us(small, device, LIBRARY) if rows > 1 else float("nan"),
            )
            another = float("nan")
            if rows == 1:
                with mock.patch.object(gemv, "_VECTORS", 128):
                    another = call_us(small, device, None)
            elif not small.many:
                another = call_us(small, device, tiled_tile.rule(rows, small.depth, small.columns, small.gated))
            floor = 1e6 * small.bytes / bandwidth
            lines.append((where, str(rows), *(f"{us:.2f}" for us in (floor, bf16, fp8, library, another))))
    print(grid(lines), flush=True)
    return lines


def engine_figures(args: argparse.Namespace, name: str, parts: set[str], rows: list[int]) -> Any:
    began_s, (kind, cache, int8) = time.perf_counter(), ENGINES[name]
    most = max(*rows, args.saturated_rows) if "saturated" in parts else max(rows)
    config = EngineConfig(max_rows=most, warm_rows=most, quantize=kind, kv_cache_dtype=cache)
    with nullcontext() if int8 else mock.patch.object(checkpoint, "quantize_units"):
        engine = sonant.load(args.folder, device=args.device, config=config)
    told = f"{name}: loaded in {time.perf_counter() - began_s:.1f} s, weights "
    print(f"{told}{engine.model.weights().total_bytes / 1e9:.2f} GB", flush=True)
    saturated = None
    freeze_what_is_alive()
    with engine:
        if "saturated" in parts:
            offline.saturate(engine, 8)
            saturated = offline.saturate(engine, SATURATED_FRAMES)
            print(f"{name}, {most} rows: saturated {saturated.audio_s_per_s:,.0f} audio s/s", flush=True)
    bandwidth = copy_bandwidth(engine.device)
    found = [break_down(engine, n, args.frames, bandwidth) for n in rows] if "steps" in parts else []
    return found, saturated


def step_table(found: dict[str, list[Breakdown]]) -> str:
    lines: list[tuple[str, ...]] = [("rows", "part", *(f"{kind} ms" for kind in found), *(f"{k} floor" for k in found))]
    for level in zip(*found.values(), strict=True):
        for parts in zip(*(b.parts for b in level), strict=True):
            ms, floors = [f"{p.ms:.3f}" for p in parts], [f"{p.floor_ms:.3f}" for p in parts]
            lines.append((str(level[0].streams), parts[0].name, *ms, *floors))
        for name, of in (("frame", lambda b: b.frame_ms), ("step", lambda b: b.step_ms)):
            floors = [f"{b.floor_ms:.3f}" if name == "step" else "" for b in level]
            lines.append((str(level[0].streams), name, *(f"{of(b):.3f}" for b in level), *floors))
    return grid(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/sonant-1.7b"))
    parser.add_argument("--parts", default="check,kernels,steps,saturated")
    parser.add_argument("--rows", default="1,64,256")
    parser.add_argument("--frames", type=int, default=60, help="that rows have behind them in a step")
    parser.add_argument("--saturated-rows", type=int, default=512)
    parser.add_argument("--engines", default=USUAL_ENGINES, help=f"of {', '.join(ENGINES)}")
    parser.add_argument("--device", default="cuda", help="cpu: to try steps and saturated with a tiny model")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    parts, rows = set(args.parts.split(",")), [int(n) for n in args.rows.split(",")]
    report: dict[str, Any] = {}
    if parts & {"check", "kernels"}:
        compile_all(parts)
    device = torch.device(args.device)
    with torch.inference_mode():
        if "check" in parts:
            report["errors"] = check(device)
        if "kernels" in parts:
            report["kernels"] = time_kernels(device, copy_bandwidth(device))
    if parts & {"steps", "saturated"}:
        if not (args.folder / "config.json").exists():
            args.folder.mkdir(parents=True, exist_ok=True)
            write_checkpoint(args.folder, kind="custom_voice", size="1.7b", device="cuda", tokenizer_from=None)
        found = {}
        for name in args.engines.split(","):
            found[name], saturated = engine_figures(args, name, parts, rows)
            report[f"saturated {name}"] = saturated and saturated.audio_s_per_s
            gc.unfreeze()
            gc.collect()
            torch.cuda.empty_cache()
        if "steps" in parts:
            print(step_table(found), flush=True)
            report["steps"] = {k: [(b.streams, b.frame_ms, b.step_ms, b.floor_ms) for b in v] for k, v in found.items()}
    if args.out:
        args.out.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
