"""Attention in CUDA C++ on a GPU: build, check against the reference, measure.

    PYTHONPATH=src:tests python3 tests/gpu_attention.py                       # all of it, about a minute
    PYTHONPATH=src:tests python3 tests/gpu_attention.py --shapes 50 --sweep   # splits, stages, early reads
    PYTHONPATH=src:tests compute-sanitizer --tool memcheck python3 tests/gpu_attention.py --shapes 24 --no-bench
    PYTHONPATH=src:tests compute-sanitizer --tool racecheck python3 tests/gpu_attention.py --shapes 12 --no-bench

The last line says how many shapes were wrong; the exit code is 1 if any was.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from functools import partial

import torch

from kernels.paged_cases import (
    RELATIVE_ERROR,
    cache_error,
    draw,
    error_of,
    exact_attention,
    exact_step,
    prefill_call,
    step_call,
)
from sonant.bench.engine.device_clock import copy_bandwidth, product_rate
from sonant.bench.kernels.attention_cases import AttentionCases
from sonant.bench.kernels.case import Call, Case
from sonant.bench.kernels.versus_torch import Ceiling, call_us, calls_of, rival_us
from sonant.kernels.cuda import attention, compiler
from sonant.kernels.gpu import gpu_of

CUDA = torch.device("cuda")
OURS = {"paged_step": attention.paged_step, "paged_attention": attention.paged_attention}


def build() -> None:
    gpu = gpu_of(CUDA)
    assert gpu is not None
    print(f"{gpu.name}, torch {torch.__version__}, {compiler.find_compiler()}", flush=True)
    for program in attention.programs():
        began = time.monotonic()
        path = compiler.build(program, gpu.arch)
        print(f"built {path.name} in {time.monotonic() - began:.1f} s", flush=True)
    for dim in (64, 128):
        kernels = [attention.decode_kernel(dim, n) for n in (2, 3, 4)]
        kernels += [attention.prefill_kernel(dim, n) for n in (64, 128)]
        if not all(kernel.is_ready(CUDA) for kernel in kernels):
            sys.exit("a kernel does not load: see the log")


def check(shapes: int) -> int:
    worst, wrong, began = {"step": 0.0, "prefill": 0.0}, 0, time.monotonic()
    for seed in range(shapes):
        steps, long = seed % 10 < 7, seed % 8 == 0
        rng = random.Random(seed)
        rows, length = (3, 3000) if long else (8, 500)
        shape = draw(rng, most_rows=rows, most_length=length, most_queries=1 if steps else 200)
        if steps:
            call = step_call(shape, seed, "cuda")
            own = call[2].clone()
            expected = exact_step(*call)
            options = {"splits": seed % 9, "stages": (None, 2, 3, 4)[seed % 4], "early": seed % 3 > 0}
            error = error_of(attention.paged_step(*call[:2], own, *call[3:], **options), expected)
            error = max(error, cache_error(own, call[2]))
        else:
            call = prefill_call(shape, seed, "cuda")
            error = error_of(attention.paged_attention(*call), exact_attention(*call))
        kind = "step" if steps else "prefill"
        worst[kind] = max(worst[kind], error)
        if not error < RELATIVE_ERROR:
            wrong += 1
            if wrong <= 12:
                print(f"WRONG: {kind}, seed {seed}, error {error:.3g}: {shape}", flush=True)
    told = ", ".join(f"{kind} {error:.2e}" for kind, error in worst.items())
    print(f"{shapes} shapes in {time.monotonic() - began:.1f} s, worst relative error: {told}", flush=True)
    return wrong


def bench(sweep: bool) -> None:
    """The long contexts, and steps as an engine has them, which must not be slower than Triton's."""
    ceiling = Ceiling(copy_bandwidth(CUDA), product_rate(CUDA, torch.bfloat16))
    print(f"copy {ceiling.bytes_per_s / 1e9:,.0f} GB/s, product {ceiling.flops_per_s / 1e12:,.0f} TFLOP/s")
    cases = AttentionCases(CUDA, torch.bfloat16)
    usual = (cases.decode(rows, span) for rows, span in ((1, 300), (16, 300), (64, 300), (256, 200), (512, 200)))
    for case in (*cases.every(), *usual, cases.prefill(1, 256), cases.prefill(16, 64)):
        calls = calls_of(case)
        us, floor = call_us(OURS[case.op], calls, CUDA), ceiling.floor_us(case)
        rates = f"{case.bytes / us / 1e3:,.0f} GB/s, {case.flops / us / 1e6:,.0f} TFLOP/s"
        others = ", ".join(f"{name} {rival_us(r, calls, CUDA):.2f}" for name, r in case.rivals.items())
        print(
            f"{case.op} {case.rows} rows, {case.where}: {us:.2f} µs, floor {floor:.2f} ({100 * floor / us:.0f} %), "
            f"{rates}; beside it: {others}", flush=True,
        )  # fmt: skip
        if sweep:
            turn_knobs(case, calls, floor)


def turn_knobs(case: Case, calls: list[Call], floor: float) -> None:
    def told(function: Callable[..., object]) -> str:
        us = call_us(function, calls, CUDA)
        return f"{us:.2f} µs ({100 * floor / us:.0f} %)"

    if case.op == "paged_attention":
        picked = attention._prefill_for
        for queries in (64, 128):
            attention._prefill_for = lambda *sizes, queries=queries: attention.prefill_kernel(128, queries)
            print(f"    tiles of {queries} queries: {told(attention.paged_attention)}", flush=True)
        attention._prefill_for = picked
        return
    print(f"    without early reads: {told(partial(attention.paged_step, early=False))}", flush=True)
    for splits in (1, 2, 3, 4, 8, 16, 32, 64):
        if 8 * case.rows * splits <= 4096:
            print(
                f"    at most {splits} blocks a row: {told(partial(attention.paged_step, splits=splits))}", flush=True
            )
    for stages in (2, 3, 4):
        print(f"    {stages} stages: {told(partial(attention.paged_step, stages=stages))}", flush=True)
    least = attention._LEAST_UNITS
    for units in {1, 2, 4, 8} - {least} if case.rows <= 16 else ():
        attention._LEAST_UNITS = units
        print(f"    shares of {64 * units} positions at least: {told(attention.paged_step)}", flush=True)
    attention._LEAST_UNITS = least


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=int, default=1000)
    parser.add_argument("--no-bench", action="store_true")
    parser.add_argument("--sweep", action="store_true", help="measure other splits, early reads and tiles as well")
    args = parser.parse_args()
    with torch.inference_mode():
        build()
        wrong = check(args.shapes)
        if not args.no_bench:
            bench(args.sweep)
    print(f"{wrong} of {args.shapes} shapes wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
