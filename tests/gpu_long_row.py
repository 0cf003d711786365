"""Decode attention of one long row on a GPU: blocks that put their sums together through each other's shared memory.

    PYTHONPATH=src:tests python3 tests/gpu_long_row.py            # about a minute and a half

First clusters of every size are checked against the reference on drawn shapes, in processes of their own. Then how many
clusters of each form the GPU has room for: a launch of 8 heads needs 8, and as many again if the next is to read beside
it. Then one row of 8,192 positions, as `gpu_attention.py` measures it: the form of today, and of each size of block the
numbers of blocks; for the best of these, when the next launch is let in, what comes into the second-level cache before
the wait, and whether chunks are asked for in turn, one knob after the other. 85 % of the copy bandwidth are asked. The
best of all at other lengths and rows comes last.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product

import torch

from gpu_short_rows import launch_us
from kernels.paged_cases import RELATIVE_ERROR, Shape, cache_error, error_of, exact_step, step_call
from sonant.bench.engine.device_clock import copy_bandwidth
from sonant.bench.kernels.attention_cases import EIGHT_BITS, AttentionCases
from sonant.bench.kernels.case import Call, Case
from sonant.bench.kernels.versus_torch import calls_of
from sonant.kernels.cuda import attention, compiler
from sonant.kernels.cuda.attention import CLUSTERS, DecodeForm
from sonant.kernels.gpu import gpu_of
from sonant.text_table import grid

CUDA = torch.device("cuda")
SHAPES, WORKERS = 200, 8
SIZES = range(6, 17)  # blocks of a cluster
KNOBS = {"let_in": (-1, 0, 1, 2, 4, 8, 16), "fetched": (0, 1, 2, 4, 8, 16), "in_turn": (True, False)}
FINALISTS, ROUNDS = 3, 2
ASKED = 0.85  # of the copy bandwidth
ELSEWHERE = ((1, 300), (1, 2048), (1, 4096), (1, 16384), (2, 8192), (4, 8192))


def build() -> None:
    gpu, began = gpu_of(CUDA), time.monotonic()
    assert gpu is not None
    kinds = product((64, 128), (attention.ALONE, CLUSTERS[0]), (1, 2), (8, 16))
    programs = {attention.decode_kernel(*kind).program for kind in kinds}
    with ThreadPoolExecutor() as pool:
        for _ in pool.map(lambda program: compiler.build(program, gpu.arch), programs):
            pass
    print(f"{gpu.name}, torch {torch.__version__}, built in {time.monotonic() - began:.1f} s", flush=True)


def check(seeds: Iterable[int]) -> int:
    """How many were wrong."""
    wrong, count, worst = 0, 0, 0.0
    for seed in seeds:
        rng = random.Random(seed)
        form = rng.choice(CLUSTERS)._replace(
            cluster=rng.randint(1, 16), **{knob: rng.choice(values) for knob, values in KNOBS.items()}
        )
        heads, kv_heads = rng.choice(((16, 8), (24, 8), (4, 4), (16, 1), (6, 2)))
        lengths = tuple(rng.choice((0, 511, 513, rng.randrange(9000))) for _ in range(rng.randint(1, 3)))
        shape = Shape(heads, kv_heads, rng.choice((64, 128)), rng.choice((16, 1, 64)), lengths, 1, False, True, 1)
        shape = replace(shape, eight=rng.random() < 0.3)
        kernel = attention.decode_kernel(shape.dim, form, 1 if shape.eight else 2, heads // kv_heads)
        if not kernel.clusters_at_once(CUDA):
            continue
        print(f"@at {seed}", flush=True)
        call = step_call(shape, seed, "cuda")
        own = call[2].clone()
        expected = exact_step(*call)
        got = attention.paged_step(*call[:2], own, *call[3:], form=form, early=rng.random() < 0.8)
        error = max(error_of(got, expected), cache_error(own, call[2]) * RELATIVE_ERROR / shape.cache_error)
        count, worst = count + 1, max(worst, error)
        if not error < RELATIVE_ERROR:
            wrong += 1
            print(f"WRONG: seed {seed}, error {error:.3g}, {form}: {shape}", flush=True)
    print(f"{count} shapes, {wrong} wrong, worst error {worst:.1e}", flush=True)
    return wrong


def check_apart() -> int:
    """In processes of their own, so that what breaks one's context leaves the others theirs."""
    command, read = [sys.executable, "-u", __file__, "--seeds"], subprocess.PIPE
    seeds, broken = (f"{n}:{SHAPES}:{WORKERS}" for n in range(WORKERS)), 0
    parts = [subprocess.Popen([*command, some], stdout=read, stderr=subprocess.STDOUT, text=True) for some in seeds]
    for part in parts:
        try:
            told, late = part.communicate(timeout=40)[0], ""
        except subprocess.TimeoutExpired:
            part.kill()
            told, late = part.communicate()[0], " and does not end"
        lines = told.splitlines()
        if part.returncode:
            broken += 1
            at = next((line for line in reversed(lines) if line.startswith("@at")), "the start")
            print(f"broken at {at}{late}: " + " | ".join(lines[-4:])[-600:])
        print("\n".join(line for line in lines if line.startswith("WRONG") or " shapes, " in line), flush=True)
    return broken


def name(form: DecodeForm) -> str:
    if not form.cluster:
        return "as it is"
    let_in = "at once" if form.let_in < 0 else f"with {form.let_in} left"
    turns = "in turn" if form.in_turn else "all at once"
    return f"{form.warps}x{form.stages}, {form.cluster} blocks, next {let_in}, {form.fetched} fetched, {turns}"


class Measured:
    """One case's times, each form once."""

    def __init__(self, case: Case, bandwidth: float) -> None:
        self.calls: list[Call] = calls_of(case)
        self.floor_us, self.times = 1e6 * case.bytes / bandwidth, dict[DecodeForm, float]()

    def us(self, form: DecodeForm) -> float:
        if form not in self.times:
            us = launch_us(partial(attention.paged_step, form=form), self.calls)
            self.times[form] = us
            print(f"  {name(form)}: {us:.2f} µs ({100 * self.floor_us / us:.0f} %)", flush=True)
        return self.times[form]

    def best(self, count: int) -> list[DecodeForm]:
        return sorted(self.times, key=self.times.__getitem__)[:count]


def room() -> list[DecodeForm]:
    """Those of which a launch of 8 heads runs at once."""
    rows, fitting = [("blocks a cluster", *map(str, SIZES))], list[DecodeForm]()
    for form in CLUSTERS:
        sized = [form._replace(cluster=size) for size in SIZES]
        found = [attention.decode_kernel(128, one, 2, 2).clusters_at_once(CUDA) for one in sized]
        rows.append((f"{form.warps}x{form.stages}", *map(str, found)))
        fitting += [one for one, count in zip(sized, found, strict=True) if count >= 8]
    print(grid(rows), flush=True)
    return fitting


def tune(measured: Measured, forms: Iterable[DecodeForm]) -> DecodeForm:
    for form in forms:
        for in_turn in KNOBS["in_turn"]:
            measured.us(form._replace(in_turn=bool(in_turn)))
    for finalist in measured.best(FINALISTS):
        for _ in range(ROUNDS):
            for knob, values in KNOBS.items():
                finalist = min((finalist._replace(**{knob: value}) for value in values), key=measured.us)
    return measured.best(1)[0]


def elsewhere(cases: Iterable[Case], best: DecodeForm, bandwidth: float) -> str:
    rows = [("rows × positions", "floor", "by the rule", "best", "of copy")]
    for case in cases:
        calls, floor = calls_of(case), 1e6 * case.bytes / bandwidth
        times = [launch_us(partial(attention.paged_step, form=form), calls) for form in (None, best)]
        told = [f"{us:.2f}" for us in (floor, *times)]
        rows.append((f"{case.rows} × {case.where}", *told, f"{100 * floor / times[1]:.0f} %"))
    return grid(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", metavar="A:B:STEP", help="only check these shapes, in this process")
    args = parser.parse_args()
    with torch.inference_mode():
        if args.seeds:
            return int(check(range(*map(int, args.seeds.split(":")))) > 0)
        build()
        broken = check_apart()
        fitting = room()
        cases, bandwidth = AttentionCases(CUDA, torch.bfloat16), copy_bandwidth(CUDA)
        print(f"copy {bandwidth / 1e9:,.0f} GB/s; 1 × 8,192:", flush=True)
        measured = Measured(cases.decode(1, 8192), bandwidth)
        now = measured.us(attention.ALONE)
        best = tune(measured, fitting)
        share = measured.floor_us / measured.times[best]
        others = [cases.decode(rows, span) for rows, span in ELSEWHERE] + [cases.decode(1, 8192, EIGHT_BITS)]
        print(f"best: {name(best)}, {now:.2f} → {measured.times[best]:.2f} µs\n{elsewhere(others, best, bandwidth)}")
    print(f"{broken} parts of the check wrong or broken; 85 % {'met' if share >= ASKED else 'not met'}")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
