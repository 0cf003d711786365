"""Attention in CUDA C++ on a GPU: build, check against the reference, measure.

    PYTHONPATH=src:tests python3 tests/gpu_attention.py                       # everything, about a minute
    PYTHONPATH=src:tests python3 tests/gpu_attention.py --sweep               # also other splits, forms, early reads
    PYTHONPATH=src:tests python3 tests/gpu_sanitizer.py                       # some shapes under compute-sanitizer

FlashInfer is measured too where it is installed (`tests/flashinfer_bundle.sh` packs it for a machine without network).

Each phase is a process with a time limit, so a kernel that hangs, or that leaves the GPU's context unusable, ends only
its own phase (and a phase of shapes goes on after that shape). The table comes last, then one line that counts errors;
the exit code is 1 if there were any.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from itertools import product

import torch

from kernels.attention_chain import Chain
from kernels.attention_chain import exact_step as exact_step_of_chain
from kernels.paged_cases import (
    RELATIVE_ERROR,
    Shape,
    cache_error,
    draw,
    error_of,
    exact_attention,
    exact_step,
    prefill_call,
    step_call,
)
from sonant.bench.engine.device_clock import copy_bandwidth, product_rate
from sonant.bench.kernels.attention_cases import EIGHT_BITS, AttentionCases
from sonant.bench.kernels.case import Call, Case
from sonant.bench.kernels.versus_torch import Ceiling, call_us, calls_of, rival_us
from sonant.kernels.cuda import attention, compiler, prefill_wgmma
from sonant.kernels.cuda.attention import PrefillForm
from sonant.kernels.gpu import gpu_of
from sonant.text_table import grid

CUDA = torch.device("cuda")
OURS = {"paged_step": attention.paged_step, "paged_attention": attention.paged_attention}
LIMIT_S, PEER_S = 40.0, 400.0
PREFILL_FORMS = [PrefillForm(queries, wgmma) for wgmma in (False, True) for queries in (64, 128)]
WORKERS = 4  # processes that check shapes at the same time
RESTARTS = 3  # of each of them, after the shape that broke it
AT, WRONG, ROW, KNOB, PEER = "@at ", "@wrong ", "@row ", "  · ", "peer: "  # how lines for the parent begin
HEADER = ("op", "rows", "positions", "µs", "floor", "of copy/peak", "GB/s", "TFLOP/s", "triton", "flash", "flashinfer")


def build() -> None:
    gpu = gpu_of(CUDA)
    assert gpu is not None
    print(f"{gpu.name}, torch {torch.__version__}, {compiler.find_compiler()}", flush=True)
    began = time.monotonic()
    with ThreadPoolExecutor() as pool:
        programs = (*attention.programs(), *attention.trial_programs())
        for path in pool.map(lambda program: compiler.build(program, gpu.arch), programs):
            print(f"built {path.name}, {time.monotonic() - began:.1f} s", flush=True)
    for dim, kv_bytes in product((64, 128), (2, 1)):
        kernels = [attention.decode_kernel(dim, f, kv_bytes, share) for f, share in product(attention.FORMS, (8, 16))]
        kernels += [attention.prefill_kernel(dim, n, kv_bytes) for n in (64, 128)]
        kernels += [prefill_wgmma.kernel_of(dim, n) for n in prefill_wgmma.QUERIES]
        if unready := [kernel.entry for kernel in kernels if not kernel.is_ready(CUDA)]:
            sys.exit(f"{', '.join(unready)} of {dim}, {kv_bytes} bytes, do not load: see the log")


def shapes_phase(seeds: Iterable[int]) -> None:
    worst, count, began = {"step": 0.0, "step8": 0.0, "prefill": 0.0, "prefill8": 0.0}, 0, time.monotonic()
    for seed in seeds:
        kind, shape, options = drawn(seed)
        print(f"{AT}{seed}", flush=True)
        error = step_error(shape, seed, options) if kind.startswith("step") else prefill_error(shape, seed)
        worst[kind], count = max(worst[kind], error), count + 1
        if not error < RELATIVE_ERROR:
            print(f"{WRONG}{kind}, seed {seed}, error {error:.3g}, {options}: {shape}", flush=True)
    told = ", ".join(f"{kind} {error:.2e}" for kind, error in worst.items())
    print(f"{count} shapes in {time.monotonic() - began:.1f} s, worst relative error: {told}", flush=True)


def drawn(seed: int) -> tuple[str, Shape, dict[str, object]]:
    kind, long = "step" if seed % 10 < 7 else "prefill", seed % 8 == 0
    rows, length = (2, 12_000) if seed % 40 == 0 else (3, 3000) if long else (8, 500)
    shape = draw(random.Random(seed), most_rows=rows, most_length=length, most_queries=1 if kind == "step" else 200)
    shape = replace(shape, eight=seed // 2 % 3 == 0)
    splits, form = (0, 1, 2, 3, 5, 8, 12, 31, 64)[seed % 9], (None, *attention.FORMS)[seed % (1 + len(attention.FORMS))]
    options = {"splits": splits, "form": form, "early": seed % 3 > 0}
    if seed % 16 == 8:  # long rows
        options |= {"splits": None, "helpers": 1 + seed // 16 % 5}
    return kind + "8" * shape.eight, shape, options if kind == "step" else {}


def step_error(shape: Shape, seed: int, options: dict[str, object]) -> float:
    call = step_call(shape, seed, "cuda")
    (qkv, heads, _, *rest), own = call, call[2].clone()
    expected = exact_step(*call)
    error = error_of(attention.paged_step(qkv, heads, own, *rest, **options), expected)
    written = cache_error(own, call[2])  # this has its own limit
    return max(error, written * RELATIVE_ERROR / shape.cache_error)


def prefill_error(shape: Shape, seed: int) -> float:
    form = (None, *PREFILL_FORMS)[seed % (1 + len(PREFILL_FORMS))]
    if form and form.wgmma and seed % 2:  # otherwise it would not take many of the block sizes
        shape = replace(shape, block=(8, 16, 32, 64, 128)[seed // 2 % 5], eight=False)
    call = prefill_call(shape, seed, "cuda")
    return error_of(attention.paged_attention(*call, form=form), exact_attention(*call))


def chains_phase() -> None:
    """Check steps as an engine runs them: in graphs, after kernels that let the next one start early, and with two
    engines at once."""
    from sonant.kernels.triton import paged

    for rows, frames in ((1, 700), (3, 600), (64, 100)):
        print(f"{AT}{rows}", flush=True)
        ours, other = (Chain(rows, frames, 7, step) for step in (attention.paged_step, paged.paged_step))
        exact = Chain(rows, frames, 7, exact_step_of_chain, graphs=False)
        for chain in (ours, other, exact):
            chain.play(frames)
        error, usual = (error_of(c.out.flatten(0, 1), exact.out.flatten(0, 1)) for c in (ours, other))
        told = f"chain of {rows} rows, {frames} frames in graphs: error {error:.2e}, Triton's {usual:.2e}"
        print(told if error < 1.25 * usual + RELATIVE_ERROR else WRONG + told, flush=True)
        twins = [Chain(rows, frames, 7, attention.paged_step) for _ in range(2)]
        streams = [torch.cuda.Stream() for _ in twins]
        torch.cuda.synchronize()
        for _ in range(frames):
            for twin, stream in zip(twins, streams, strict=True):
                with torch.cuda.stream(stream):
                    twin.play(1)
        torch.cuda.synchronize()
        same = all(torch.equal(twin.out, ours.out) for twin in twins)
        told = f"chains of {rows} rows, two at once: {'the same bits' if same else 'DIFFERENT'}"
        print(told if same else WRONG + told, flush=True)


def bench_phase(kind: str, sweep: bool) -> None:
    """Measure long contexts, and an engine's usual steps, which must not be slower than Triton's."""
    ceiling = Ceiling(copy_bandwidth(CUDA), product_rate(CUDA, torch.bfloat16))
    print(f"copy {ceiling.bytes_per_s / 1e9:,.0f} GB/s, product {ceiling.flops_per_s / 1e12:,.0f} TFLOP/s", flush=True)
    cases = AttentionCases(CUDA, torch.bfloat16)
    usual = [cases.decode(rows, span) for rows, span in ((1, 300), (16, 300), (64, 300), (256, 200), (512, 200))]
    usual += [cases.decode(rows, span, EIGHT_BITS) for rows, span in ((1, 300), (64, 300), (512, 200))]
    for case in (*cases.every(), *usual, cases.prefill(1, 256), cases.prefill(16, 64)):
        if (case.op == "paged_step") != (kind == "decode"):
            continue
        print(f"{AT}{case.op} {case.rows} {case.where}", flush=True)
        calls = calls_of(case)
        us, floor = call_us(OURS[case.op], calls, CUDA), ceiling.floor_us(case)
        others = {name: rival_us(rival, calls, CUDA) for name, rival in case.rivals.items()}
        row = (
            case.op, str(case.rows), case.where.removeprefix("long ").replace(" positions", ""), f"{us:.2f}",
            f"{floor:.2f}", f"{100 * floor / us:.0f} %", f"{case.bytes / us / 1e3:,.0f}",
            f"{case.flops / us / 1e6:,.0f}",
            *(f"{others[name]:.2f}" if name in others else "-" for name in HEADER[-3:]),
        )  # fmt: skip
        print(f"{ROW}{json.dumps(row)}", flush=True)
        if sweep and us > 8:  # less is mostly launches
            turn_knobs(case, calls, floor)


def peer_phase() -> None:
    """Let FlashInfer compile its kernels, which it does when they are first called, for longer than other phases
    may take."""
    cases = AttentionCases(CUDA, torch.bfloat16)
    for case in (cases.decode(1, 300), cases.prefill(1, 256)):
        began = time.monotonic()
        rival = case.rivals["flashinfer"]
        call = rival.prepare(case.make())
        rival.function(*call.args, **call.kwargs)
        torch.cuda.synchronize()
        print(f"{PEER}FlashInfer's {case.op}: ready after {time.monotonic() - began:.0f} s", flush=True)


def turn_knobs(case: Case, calls: list[Call], floor: float) -> None:
    def told(what: str, function: Callable[..., object]) -> None:
        us = call_us(function, calls, CUDA)
        print(f"{KNOB}{case.rows} × {case.where}, {what}: {us:.2f} µs ({100 * floor / us:.0f} %)", flush=True)

    if case.op == "paged_attention":
        for form in PREFILL_FORMS:
            told(f"{form}", partial(attention.paged_attention, form=form))
        return
    told("without early reads", partial(attention.paged_step, early=False))
    for splits in (1, 2, 3) if case.rows > 8 else (8, 16, 22, 32, 64):
        told(f"at most {splits} blocks a row", partial(attention.paged_step, splits=splits))
    for form in attention.FORMS:
        told(f"{form}", partial(attention.paged_step, form=form))
    least = attention._LEAST_SHARE
    for positions in (128, 512) if case.rows <= 16 else ():
        attention._LEAST_SHARE = positions
        told(f"shares of {positions} positions at least", attention.paged_step)
    attention._LEAST_SHARE = least
    alone = attention._MOST_ALONE
    for positions in (0, 256, 1024) if case.rows <= 16 else ():
        attention._MOST_ALONE = positions
        told(f"rows up to {positions} positions alone", attention.paged_step)
    attention._MOST_ALONE = alone


@dataclass
class Watched:
    """A phase in a process of its own, which is killed when its time is over, and restarted after the shape that broke
    it."""

    phase: str
    options: list[str] = field(default_factory=list)
    seeds: range | None = None
    limit_s: float = LIMIT_S
    wrong: int = 0
    rows: list[list[str]] = field(default_factory=list)
    at: str = "the start"

    def run(self) -> Watched:
        for _ in range(1 + RESTARTS):
            code = self._once()
            if code == 0:
                break
            self.wrong += 1
            ended = "took too long" if code == -signal.SIGKILL else f"ended with {code}"
            print(f"BROKEN: {self.phase} {ended} at {self.at}", flush=True)
            if self.seeds is None or not self.at.isdecimal() or int(self.at) + WORKERS not in self.seeds:
                break
            self.seeds = range(int(self.at) + WORKERS, self.seeds.stop, WORKERS)
        return self

    def _once(self) -> int:
        seeds = [] if self.seeds is None else ["--seeds", f"{self.seeds.start}:{self.seeds.stop}:{WORKERS}"]
        command = [sys.executable, "-u", __file__, "--phase", self.phase, *seeds, *self.options]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        timer = threading.Timer(self.limit_s, child.kill)
        timer.start()
        assert child.stdout is not None
        last_lines: list[str] = []
        for line in child.stdout:
            self._heard(line.rstrip("\n"), last_lines)
        code = child.wait()
        timer.cancel()
        if code:
            print("\n".join(last_lines[-6:]), flush=True)
        return code

    def _heard(self, line: str, last_lines: list[str]) -> None:
        if line.startswith(AT):
            self.at = line.removeprefix(AT)
        elif line.startswith(WRONG):
            self.wrong += 1
            if self.wrong <= 5:
                print(f"WRONG: {line.removeprefix(WRONG)}", flush=True)
        elif line.startswith(ROW):
            self.rows.append(json.loads(line.removeprefix(ROW)))
            print("  ".join(self.rows[-1]), flush=True)
        elif line.startswith((KNOB, PEER, "copy", "chain")) or " shapes in " in line:
            print(line, flush=True)
        else:
            last_lines.append(line)


def everything(args: argparse.Namespace) -> int:
    build()
    checks = [Watched("shapes", seeds=range(n, args.shapes, WORKERS)) for n in range(min(WORKERS, args.shapes))]
    checks.append(Watched("chains"))
    if find_spec("flashinfer"):
        checks.append(Watched("peer", limit_s=PEER_S))
    with ThreadPoolExecutor(len(checks)) as pool:
        done = list(pool.map(Watched.run, checks))
    options, limit_s = (["--sweep"], 2 * LIMIT_S) if args.sweep else ([], LIMIT_S)
    if not args.no_bench:
        done += [Watched(phase, options, limit_s=limit_s).run() for phase in ("decode", "prefill")]
    rows = [row for watched in done for row in watched.rows]
    if rows:
        print(grid([HEADER, *rows]))
    wrong = sum(watched.wrong for watched in done)
    print(f"{wrong} wrong or broken, of {args.shapes} shapes and {len(done) - WORKERS} other phases")
    return int(wrong > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=int, default=1000)
    parser.add_argument("--no-bench", action="store_true")
    parser.add_argument("--sweep", action="store_true", help="measure other splits, early reads and blocks as well")
    phases = ("shapes", "chains", "peer", "decode", "prefill")
    parser.add_argument("--phase", choices=phases, help="only this, in this process")
    parser.add_argument("--seeds", metavar="A:B:STEP", help="of the shapes of a phase")
    args = parser.parse_args()
    if args.phase is None:
        return everything(args)
    with torch.inference_mode():
        if args.phase == "shapes":
            shapes_phase(range(*map(int, args.seeds.split(":"))) if args.seeds else range(args.shapes))
        elif args.phase == "chains":
            chains_phase()
        elif args.phase == "peer":
            peer_phase()
        else:
            bench_phase(args.phase, args.sweep)
    return 0


if __name__ == "__main__":
    sys.exit(main())
