"""Decode attention of many short rows on a GPU, in all forms of a block, compared with the time of reading alone.

    PYTHONPATH=src:tests python3 tests/gpu_short_rows.py            # about half a minute
    PYTHONPATH=src:tests python3 tests/gpu_short_rows.py --bounds   # checks, two rows of the table, and the bounds

First each form is checked against the reference on drawn shapes of short rows, in processes of their own. Then come
times of one launch in a graph of many, as in `gpu_attention.py`. The bounds are those of kernels that read the same
bytes with the same grid and launch and do nothing else (kernels/read_only.cu).
"""

from __future__ import annotations

import argparse
import math
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from kernels.paged_cases import RELATIVE_ERROR, cache_error, draw, error_of, exact_step, step_call
from sonant.bench.engine.device_clock import copy_bandwidth, time_ms
from sonant.bench.kernels.attention_cases import EIGHT_BITS, AttentionCases
from sonant.bench.kernels.case import Call, Case
from sonant.bench.kernels.versus_torch import calls_of
from sonant.kernels.cuda import attention, compiler, driver
from sonant.kernels.cuda.attention import ALONE, FORMS, NARROW, PAIR, SMALL, WIDE, DecodeForm
from sonant.kernels.gpu import gpu_of
from sonant.text_table import grid

CUDA = torch.device("cuda")
SHAPES, WORKERS = 300, 8
MANY, FEW = (WIDE, NARROW, SMALL), (ALONE, PAIR, WIDE)
READ_SOURCE = Path(__file__).parent / "kernels" / "read_only.cu"
READ_ARGS = struct.Struct("<3Q2i")


def build(folder: Path) -> Path:
    """Build all programs at once → the cubin of the kernels that only read."""
    gpu, nvcc, began = gpu_of(CUDA), compiler.find_compiler(), time.monotonic()
    assert gpu is not None and nvcc is not None
    reads = folder / "read_only.cubin"
    with ThreadPoolExecutor() as pool:
        only = pool.submit(compiler.compile_to, reads, compiler.Program(str(READ_SOURCE), {}), gpu.arch, nvcc)
        for _ in pool.map(lambda program: compiler.build(program, gpu.arch), attention.programs()):
            pass
        only.result()
    print(f"{gpu.name}, built in {time.monotonic() - began:.1f} s", flush=True)
    return reads


def check(seeds: range) -> int:
    """Check every form on each of the shapes → how many were wrong."""
    worst, wrong = dict.fromkeys(FORMS, 0.0), 0
    for seed in seeds:
        shape = draw(random.Random(seed), most_rows=24, most_length=(40, 130, 450)[seed % 3], most_queries=1)
        shape = replace(shape, eight=seed // 2 % 3 == 0)
        if seed % 4 == 0:  # many rows, some of which helpers share
            long = tuple(random.Random(seed).randrange(500, 1500) for _ in range(seed // 4 % 5))
            shape = replace(shape, lengths=(*shape.lengths, *range(15), *long))
        call = step_call(shape, seed, "cuda")
        (qkv, heads, _, *rest), before = call, call[2].clone()
        expected = exact_step(*call)
        for form in FORMS:
            own = before.clone()
            options: dict[str, Any] = {"early": seed % 3 > 0, "splits": (None, 1, 3)[seed // 3 % 3]}
            if seed % 4 == 0:
                options |= {"splits": None, "helpers": (1, 2, 6, 12)[seed // 4 % 4]}
            error = error_of(attention.paged_step(qkv, heads, own, *rest, form=form, **options), expected)
            error = max(error, cache_error(own, call[2]) * RELATIVE_ERROR / shape.cache_error)
            worst[form] = max(worst[form], error)
            if not error < RELATIVE_ERROR:
                wrong += 1
                print(f"WRONG: {name(form)}, seed {seed}, error {error:.3g}, {options}: {shape}", flush=True)
    told = ", ".join(f"{name(form)} {error:.1e}" for form, error in worst.items())
    print(f"shapes {seeds}: {wrong} wrong; worst {told}", flush=True)
    return wrong


def check_apart() -> int:
    """Check shapes in several processes, so that a broken CUDA context ends only one of them → how many were wrong."""
    began = time.monotonic()
    command = [sys.executable, __file__, "--seeds"]
    parts = [subprocess.Popen([*command, f"{n}:{SHAPES}:{WORKERS}"]) for n in range(WORKERS)]
    broken = 0
    for part in parts:
        try:
            broken += part.wait(timeout=30) != 0
        except subprocess.TimeoutExpired:
            part.kill()
            broken += 1
    print(f"{SHAPES} shapes × {len(FORMS)} forms, {broken} parts wrong or broken, {time.monotonic() - began:.1f} s")
    return broken


def launch_us(function: Callable[..., Any], calls: Sequence[Call]) -> float:
    """Microseconds of a launch, measured like versus_torch.call_us but in half the time."""
    turns, count = cycle(calls), max(32, len(calls))

    def many() -> None:
        for _ in range(count):
            call = next(turns)
            function(*call.args, **call.kwargs)

    many()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        many()
    return 1e3 * time_ms(graph.replay, CUDA, batches=3) / count


def name(form: DecodeForm) -> str:
    return f"{form.warps}x{form.stages}"


def table(cases: Iterable[tuple[str, Case, list[Call]]], forms: Sequence[DecodeForm], bandwidth: float) -> None:
    """Print a time for each form, and the best one's share of the copy bandwidth."""
    rows = [("rows × positions", "bytes", "chosen", *map(name, forms), "best", "of copy")]
    for where, case, calls in cases:
        now = launch_us(attention.paged_step, calls)
        times = [launch_us(partial(attention.paged_step, form=form), calls) for form in forms]
        floor, best = 1e6 * case.bytes / bandwidth, min(times)
        best_name = name(forms[times.index(best)])
        told = [f"{us:.1f}" if us >= 10 else f"{us:.2f}" for us in (now, *times)]
        rows.append((where, f"{floor:.1f}", *told, best_name, f"{100 * floor / best:.0f} %"))
    print(grid(rows), flush=True)


def equal_rows(cases: AttentionCases, rows: int, span: int, eight: bool = False) -> tuple[str, Case, list[Call]]:
    case = cases.decode(rows, span, EIGHT_BITS if eight else None)
    return f"{rows} × {span}" + " of 8 bits" * eight, case, calls_of(case)


def ragged_rows(cases: AttentionCases, rows: int, longest: int) -> tuple[str, Case, list[Call]]:
    """Rows of 30 to 400 positions, one of them of `longest`."""
    rng = random.Random(1)
    lengths = [*(rng.randrange(30, 400) for _ in range(rows - 1)), longest]
    rng.shuffle(lengths)
    case = cases.decode(rows, longest)
    at = torch.tensor(lengths, dtype=torch.int32, device=CUDA)[:, None] - 1
    call = case.make()
    calls = [Call((*call.args[:4], at, call.args[5]), {})]
    moved = case.bytes * sum(lengths) // (rows * longest)
    return f"{rows} × 30…400, one {longest}", replace(case, bytes=moved), calls


def roomy(calls: Sequence[Call]) -> list[Call]:
    """The calls with tables for 4,096 positions, as in an engine's graphs."""
    wide = [F.pad(call.args[3], (0, 256 - call.args[3].shape[1])) for call in calls]
    return [Call((*call.args[:3], tables, call.args[4], 256), {}) for call, tables in zip(calls, wide, strict=True)]


def sharing_table(cases: AttentionCases, bandwidth: float) -> None:
    """Print what helpers, blocks that share long rows, cost short rows, and what they gain for long ones."""
    columns = [(WIDE, 0), *((form, helpers) for form in (NARROW, SMALL) for helpers in (0, 3, 6, 12))]
    rows = [("rows × positions", "bytes", *(f"{name(form)}+{helpers}" for form, helpers in columns))]
    equal = (equal_rows(cases, *shape) for shape in ((64, 30), (64, 90), (256, 30), (256, 90), (256, 200), (64, 1024)))
    shapes = ((256, 400), (256, 600), (256, 2000), (256, 4000), (64, 2000), (64, 4000))
    for where, case, calls in (*equal, *(ragged_rows(cases, *shape) for shape in shapes)):
        wide = roomy(calls)
        times = [launch_us(partial(attention.paged_step, form=f, helpers=n), wide) for f, n in columns]
        rows.append((where, f"{1e6 * case.bytes / bandwidth:.1f}", *(f"{us:.1f}" for us in times)))
    print(grid(rows), flush=True)


SHORT = (
    *((64, n) for n in (30, 90, 200, 300, 400, 1024, 4096)), (96, 90), (96, 400), (128, 90), (128, 400),
    *((256, n) for n in (30, 90, 200, 400, 1024)), *((512, n) for n in (90, 200, 400)),
)  # fmt: skip
LONG = (
    *((1, n) for n in (30, 300, 1024, 2048, 4096, 8192, 16384)), (2, 8192), (4, 2048), (4, 8192), (8, 300), (16, 90),
    (16, 300), (16, 2048), (32, 90), (32, 300),
)  # fmt: skip
EIGHT = ((64, 90), (64, 1024), (64, 4096), (256, 90), (256, 200), (512, 200))
EIGHT_LONG = ((1, 300), (1, 8192), (16, 300))


@dataclass(frozen=True)
class Reader:
    how: str
    warps: int
    stages: int = 0  # chunks of 8 KiB in flight for each warp
    piece: int = 0  # bytes of a bulk copy
    room: int = 0  # shared memory of a block; 0: what it needs

    @property
    def shared_bytes(self) -> int:
        return self.room or self.warps * self.stages * 8192

    def loaded(self, cubin: Path) -> driver.Function:
        entry = f"read_{self.how}" + f"_{self.stages}" * bool(self.stages)
        size = driver.BlockSize(32 * self.warps, self.shared_bytes)
        return driver.load(cubin, entry, torch.cuda.current_device(), size)


READERS = (
    *(Reader("copies", *sizes) for sizes in ((4, 4), (4, 3), (4, 2), (2, 3), (2, 2), (1, 3))),
    *(Reader("bulk", *sizes) for sizes in ((4, 4, 8192), (4, 4, 256), (4, 6, 8192), (4, 2, 8192), (4, 2, 256))),
    *(Reader("bulk", *sizes) for sizes in ((2, 2, 256), (1, 3, 8192))),
    *(Reader("words", 4, room=room) for room in (132 << 10, 64 << 10, 1 << 10)),
)
READS = (("1 × 8,192", (8, 1, 16), 262_144), ("256 × 90", (8, 256, 1), 46_080), ("64 × 90", (8, 64, 1), 46_080))


def bounds(cubin: Path, bandwidth: float) -> None:
    """Measure reading alone: of a row of 8,192 positions by 128 blocks, of short rows by a block for each row and
    head."""
    sink = torch.zeros(1, dtype=torch.int32, device=CUDA)
    for what, blocks, each in READS:
        size = math.prod(blocks) * each
        pieces = [torch.ones(size, dtype=torch.uint8, device=CUDA) for _ in range(1 + (256 << 20) // size)]
        print(f"only reading {what}: {size / 1e6:.1f} MB, by the copy {1e6 * size / bandwidth:.2f} µs", flush=True)
        rows = [("how", "warps", "KiB a block", "µs early", "µs late")]
        for reader in READERS:
            launch, times = reader.loaded(cubin).launch, []
            for early in (1, 0):
                packed = [READ_ARGS.pack(p.data_ptr(), each, sink.data_ptr(), early, reader.piece) for p in pieces]
                times.append(launch_us(launch, [Call((blocks, arguments), {}) for arguments in packed]))
            how = f"{reader.how} {reader.piece or ''}"
            rows.append((how, str(reader.warps), str(reader.shared_bytes >> 10), *(f"{us:.2f}" for us in times)))
        print(grid(rows), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bounds", action="store_true")
    parser.add_argument("--seeds", metavar="A:B:STEP", help="only check these shapes, in this process")
    args = parser.parse_args()
    with torch.inference_mode(), tempfile.TemporaryDirectory() as folder:
        if args.seeds:
            return int(check(range(*map(int, args.seeds.split(":")))) > 0)
        began = time.monotonic()
        cubin = build(Path(folder))
        broken = check_apart()
        bandwidth, cases = copy_bandwidth(CUDA), AttentionCases(CUDA, torch.bfloat16)
        print(f"copy {bandwidth / 1e9:,.0f} GB/s", flush=True)
        if args.bounds:
            table((equal_rows(cases, *shape) for shape in ((256, 90), (64, 90))), MANY, bandwidth)
            bounds(cubin, bandwidth)
        else:
            table((equal_rows(cases, *shape) for shape in LONG), FEW, bandwidth)
            table((equal_rows(cases, *shape) for shape in SHORT), MANY, bandwidth)
            sharing_table(cases, bandwidth)
            table((equal_rows(cases, *shape, True) for shape in EIGHT), MANY, bandwidth)
            table((equal_rows(cases, *shape, True) for shape in EIGHT_LONG), FEW, bandwidth)
        print(f"{broken} parts wrong or broken, {time.monotonic() - began:.0f} s")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
