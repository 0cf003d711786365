"""Qwen3-TTS's codec decoder on a Hopper GPU, full size, random weights: whether it is right, and how fast.

    python tests/gpu_codec.py [--rows 16,64,256]

Not a test that pytest collects: it needs a GPU and about a minute. Kernels compile first, in as many processes as there
are cores. New kernels are held against their references, then come ms by part and variant. The exit code says whether
all results were right.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from codec_account import (
    FRAMES,
    H200,
    MOST_FRAMES,
    VARIANTS,
    Rows,
    floor_ms,
    layers,
    made,
    plain_attention,
    recorded,
)
from sonant.bench.engine.device_clock import copy_bandwidth, product_rate, time_ms
from sonant.kernels import ops, reference
from sonant.kernels.cuda import unit as cuda_unit
from sonant.kernels.recorded_launches import AnyForm
from sonant.kernels.reference import Snake, Unit
from sonant.kernels.triton.conv import causal_conv
from sonant.layers.attention import RingContext
from sonant.models.qwen3_tts.codec import CodecDecoder
from sonant.text_table import grid

Tell = Callable[[str], None]
Ceiling = tuple[float, float]


# Right?


def unit_case(channels: int, batch: int, steps: int, dilation: int, past: bool, following: bool, seed: int = 0) -> Any:
    generator = torch.Generator("cuda").manual_seed(seed)

    def values(*shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*shape, generator=generator, device="cuda")).bfloat16()

    def snake() -> Snake:
        return Snake(values(channels, scale=0.3), values(channels, scale=0.3))

    wide = values(channels, 7, channels, scale=(7 * channels) ** -0.5).permute(0, 2, 1)
    point = values(channels, 1, channels, scale=channels**-0.5).permute(0, 2, 1)
    unit = Unit(snake(), wide, values(channels), dilation, snake(), point, values(channels))
    before = values(batch, unit.history, channels) if past else None
    return values(batch, steps, channels), unit, before, snake() if following else None


def error_of(got: Tensor, expected: Tensor) -> float:
    return float((got.float() - expected.float()).norm() / expected.float().norm())


def check_units(tell: Tell) -> bool:
    """Against float32 arithmetic on the same bfloat16 values."""
    right = True
    for channels in (96, 192):
        if not cuda_unit.unit_kernel(channels).is_ready(torch.device("cuda")):
            tell(f"unit {channels}: NOT BUILT")
            right = False
            continue
        for batch, steps, dilation, past, following in (
            (1, 128, 1, True, False), (3, 300, 3, True, True), (2, 1000, 9, False, True), (64, 640, 9, True, False),
            (64, 1920, 1, True, True),
        ):  # fmt: skip
            x, unit, before, last = unit_case(channels, batch, steps, dilation, past, following)
            got, tail = cuda_unit.residual_unit(x, unit, before, last)
            wide = [t if not isinstance(t, Tensor) else t.float() for t in (x, before)]
            plain = Unit(*(Snake(*(t.float() for t in v[:2])) if isinstance(v, Snake) else
                           v.float() if isinstance(v, Tensor) else v for v in unit))  # fmt: skip
            after = None if last is None else Snake(*(t.float() for t in last[:2]))
            expected, kept = reference.residual_unit(wide[0], plain, wide[1], after)
            wrong = error_of(got, expected), 0.0 if tail is None else error_of(tail, kept)
            good = max(wrong) < 1.5e-2
            right &= good
            word = "ok" if good else "WRONG"
            tell(f"unit {channels} {batch}×{steps} d{dilation}: {word} {wrong[0]:.1e} {wrong[1]:.1e}")
            if not good:
                bad = (got.float() - expected).abs() > 0.1 + 0.1 * expected.abs()
                tell(f"  steps {bad[0].any(1).nonzero().flatten()[:40].tolist()} channels "
                     f"{bad[0].any(0).nonzero().flatten()[:40].tolist()} got {got[0, 0, :4].tolist()} "
                     f"expected {expected[0, 0, :4].tolist()}")  # fmt: skip
                break
    return right


def check_calls(decoder: CodecDecoder, tell: Tell) -> bool:
    """Pieces of several lengths: every variant against float32 by the book; bfloat16 itself is off by 3.6 %."""
    count = 8
    codes = torch.randint(0, 2048, (count, 37, 16), device="cuda", dtype=torch.int32)

    def spoken(model: CodecDecoder, dtype: torch.dtype) -> Tensor:
        rows, pieces, index = Rows(model, count, "cuda", dtype), [], torch.arange(count, device="cuda")
        for start, frames in ((0, 1), (1, 4), (5, 16), (21, 16)):
            rows.codes[:, :frames] = codes[:, start : start + frames]
            pieces.append(rows.call(index, frames))
        return torch.cat(pieces, 1)

    exact = deepcopy(decoder).float()
    exact.prepare()
    with VARIANTS["old"](), mock.patch.object(ops, "ring_attention", plain_attention):
        truth = spoken(exact, torch.float32)
        by_the_book = spoken(decoder, torch.bfloat16)
    wrong = {"by the book": error_of(by_the_book, truth)}
    for name, variant in VARIANTS.items():
        with variant():
            wrong[name] = error_of(spoken(decoder, torch.bfloat16), truth)
    tell("calls against float32: " + ", ".join(f"{name} {error:.1e}" for name, error in wrong.items()))
    return max(wrong.values()) < 8e-2


# Fast?


def graphed_ms(run: Callable[[], object]) -> float:
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.Stream()):  # not torch.cuda.graph(), which collects garbage first
        graph.capture_begin()
        run()
        graph.capture_end()
    ms = time_ms(graph.replay, torch.device("cuda"), batches=3)
    del graph
    return ms


def groups(decoder: CodecDecoder, rows: Rows, index: Tensor, frames: int) -> dict[str, Callable[[], object]]:
    """What a call runs, each part on values of its own."""
    count, steps, latent = len(index), frames, decoder.config.latent_dim

    def values(length: int, channels: int) -> Tensor:
        return torch.randn(count, length, channels, device="cuda", dtype=torch.bfloat16)

    x, first = values(steps, latent), rows.position[index]
    positions = first[:, None] + torch.arange(steps, device="cuda")

    def transformer() -> object:
        context = RingContext(rows.ring, index, positions, decoder.config.sliding_window)
        return decoder.pre_transformer(x, positions, context)

    def state() -> object:
        tails = decoder.unpack(rows.tails[index])
        rows.tails[index] = decoder.pack(tails)
        return tails

    parts: dict[str, Callable[[], object]] = {"transformer": transformer, "state": state}
    parts["upsample"] = lambda: decoder.upsampled(x, decoder.unpack(rows.tails[index]))
    opening, *blocks, last_snake, last = decoder.decoder
    for ratio in decoder.config.upsampling_ratios:
        steps *= ratio
    wide = values(steps, latent)
    snakes: list[Any] = [*(block.opening for block in blocks), last_snake]
    tails = decoder.unpack(rows.tails[index])
    parts["first"] = lambda: opening(wide, list(tails), snake=snakes[0], keep=False)
    for n, block in enumerate(blocks):
        active = values(steps, block.block[1].conv.in_channels)
        parts[f"block {n}"] = lambda b=block, a=active, n=n: b(a, list(tails), snakes[n + 1])
        steps *= block.block[1].rate
    active = values(steps, last.conv.in_channels)
    parts["last"] = lambda: last(active, list(tails))
    return parts


def time_groups(decoder: CodecDecoder, tell: Tell, ceiling: Ceiling, shape: tuple[int, int]) -> None:
    count, frames = shape
    rows, index = Rows(decoder, count, "cuda"), torch.arange(count, device="cuda")
    found: dict[str, dict[str, float]] = {}
    for name in ("old", "all"):
        with VARIANTS[name]():
            found[name] = {part: graphed_ms(run) for part, run in groups(decoder, rows, index, frames).items()}
    floors = dict.fromkeys(found["old"], 0.0)
    for x in layers():
        if x.group in floors:
            floors[x.group] += floor_ms(x, count * frames, *ceiling)
    lines = [("part", "floor µs", *(f"{name} µs" for name in found))]
    lines += [(p, f"{1e3 * floors[p]:.0f}", *(f"{1e3 * found[n][p]:.0f}" for n in found)) for p in floors]
    tell(f"by part, {count} rows × {frames} frames\n{grid(lines)}")


def time_units(tell: Tell, flops_per_s: float) -> None:
    lines = [("unit", "frames", "tiles", "floor µs", "Triton, two µs", "CUDA, one µs", "TFLOP/s")]
    for channels, steps in ((96, 1920), (192, 640)):
        for batch, frames in ((1, 1), (4, 1), (16, 1), (64, 1), (16, 16), (64, 16)):
            x, unit, past, _ = unit_case(channels, batch, steps * frames, 3, True, False)

            def two(x: Tensor = x, unit: Unit = unit, past: Tensor = past) -> object:
                _, inner = causal_conv(x, unit.wide, unit.wide_bias, past, 3, snake=unit.between, keep=False)
                return causal_conv(inner, unit.point, unit.point_bias, None, residual=x, snake=unit.before)

            def one(x: Tensor = x, unit: Unit = unit, past: Tensor = past) -> object:
                return cuda_unit.residual_unit(x, unit, past, None)

            flops = 2 * batch * frames * steps * 8 * channels**2
            ms = graphed_ms(two), graphed_ms(one)
            lines.append((str(channels), f"{batch}×{frames}", str(batch * frames * steps // 128),
                          f"{1e6 * flops / flops_per_s:.1f}", *(f"{1e3 * m:.1f}" for m in ms),
                          f"{flops / ms[1] / 1e9:.0f}"))  # fmt: skip
    tell(grid(lines))


def time_calls(decoder: CodecDecoder, tell: Tell, counts: list[int], ceiling: Ceiling) -> None:
    lines = [("rows", "frames", "calls", "floor", *VARIANTS)]
    for count in counts:
        for frames in (1, FRAMES):
            size = min(count, MOST_FRAMES // frames)
            rows, index = Rows(decoder, size, "cuda"), torch.arange(size, device="cuda")
            calls = -(-count // size)
            found = []
            for name, variant in VARIANTS.items():
                if size * frames != MOST_FRAMES and name not in ("old", "all"):
                    found.append("")
                    continue
                with variant():
                    ms = graphed_ms(lambda: rows.call(index, frames))  # noqa: B023
                found.append(f"{ms * calls / frames:.3f}")
            floor = sum(floor_ms(x, size * frames, *ceiling) for x in layers()) * calls / frames
            lines.append((str(count), str(frames), str(calls), f"{floor:.3f}", *found))
    tell(f"ms for one frame of all rows\n{grid(lines)}")


def compile_form(form: AnyForm) -> str:
    try:
        return form.compile(H200) and ""
    except Exception as error:  # the run goes on without it, and says so
        return f"{form.name}: {str(error)[:200]}"


def compile_ahead(tell: Tell, shapes: list[tuple[int, int]]) -> None:
    began_s = time.monotonic()
    decoder, found = made("meta"), {}
    for name in ("old", "ring, one", "+ sine", "all"):  # the others need nothing else
        with VARIANTS[name]():
            found |= {(f.module, f.name, f.key): f for f in recorded(decoder, shapes)[0]}
    forms = list(found.values())
    tell(f"{len(forms)} kernels are needed")
    workers = max(1, (os.cpu_count() or 2) - 1)
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        failures = [line for line in pool.map(compile_form, forms) if line]
    tell(f"{len(forms)} kernels in {time.monotonic() - began_s:.0f} s")
    for line in failures:
        tell(f"FAILED {line}")


def in_a_process(option: str, tell: Tell) -> bool:
    """With an end, whatever a kernel does."""
    try:
        done = subprocess.run([sys.executable, __file__, option], timeout=60, capture_output=True, text=True)
    except subprocess.TimeoutExpired as error:
        tell(f"HANGS\n{(error.stdout or b'')[-2000:]!r}")
        return False
    tell(f"units\n{done.stdout[-6000:]}{done.stderr[-3000:]}")
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="16,64,256,512")
    parser.add_argument("--units", choices=("on", "off"), default="on", help="off: the CUDA units are left out")
    parser.add_argument("--check-units", action="store_true", help="only these; what a child is told")
    args = parser.parse_args()
    began_s = time.monotonic()

    def tell(line: str) -> None:
        print(f"[{time.monotonic() - began_s:5.1f} s] {line}", flush=True)

    counts = [int(n) for n in args.rows.split(",")]
    shapes = {(min(n, MOST_FRAMES // f), f) for n in counts for f in (1, FRAMES)} | {(64, 4), (64, 1), (64, 16)}
    if not args.check_units:
        compile_ahead(tell, sorted(shapes))
    with torch.inference_mode():
        if args.check_units:
            return 0 if check_units(tell) else 1
        ceiling = copy_bandwidth(torch.device("cuda")), product_rate(torch.device("cuda"), torch.bfloat16)
        measured = f"copies {ceiling[0] / 1e12:.2f} TB/s, products {ceiling[1] / 1e12:.0f} TFLOP/s"
        tell(f"{torch.cuda.get_device_name()}: {measured}")
        right = args.units == "off" or in_a_process("--check-units", tell)
        units = args.units == "on" and right
        if not units:
            VARIANTS["all"] = VARIANTS["+ sine"]
            del VARIANTS["+ 96"], VARIANTS["+ 192"], VARIANTS["+ sine"]
        decoder = made("cuda")
        right &= check_calls(decoder, tell)
        if units:
            time_units(tell, ceiling[1])
        time_calls(decoder, tell, counts, ceiling)
        time_groups(decoder, tell, ceiling, (64, FRAMES))
        time_groups(decoder, tell, ceiling, (64, 1))
    tell("ALL RIGHT" if right else "WRONG: see above")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
