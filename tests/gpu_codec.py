"""Qwen3-TTS's codec decoder on a Hopper GPU, full size, random weights: is it right, and how fast is it?

    python tests/gpu_codec.py [--rows 16,64,256]

gpu_conv.py measures its convolutions and residual units one by one.

Not a test that pytest collects: it needs a GPU and about a minute. Kernels compile first, in as many processes as there
are cores. Whole calls are compared with float32, then come ms by variant and by part. The exit code is 0 if all results
were right.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
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
from sonant.kernels import ops
from sonant.kernels.recorded_launches import AnyForm
from sonant.layers.attention import RingContext
from sonant.models.qwen3_tts.codec import CodecDecoder
from sonant.text_table import grid

Tell = Callable[[str], None]
Ceiling = tuple[float, float]


# Right?


def error_of(got: Tensor, expected: Tensor) -> float:
    return float((got.float() - expected.float()).norm() / expected.float().norm())


def check_calls(decoder: CodecDecoder, tell: Tell) -> bool:
    """Compare every variant, on pieces of several lengths, with the plain decoder in float32; bfloat16 itself is off by
    3.6 %."""
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
    with torch.cuda.stream(torch.cuda.Stream()):  # unlike torch.cuda.graph(), this collects no garbage
        graph.capture_begin()
        run()
        graph.capture_end()
    ms = time_ms(graph.replay, torch.device("cuda"), batches=3)
    del graph
    return ms


def groups(decoder: CodecDecoder, rows: Rows, index: Tensor, frames: int) -> dict[str, Callable[[], object]]:
    """The parts of a call, each of which runs on values of its own."""
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
    except Exception as error:  # the run goes on without this kernel, and reports it
        return f"{form.name}: {str(error)[:200]}"


def compile_ahead(tell: Tell, shapes: list[tuple[int, int]]) -> None:
    began_s = time.monotonic()
    decoder, found = made("meta"), {}
    for name in ("old", "ring, one", "+ sine", "all"):  # other variants need no more kernels
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="16,64,256,512")
    args = parser.parse_args()
    began_s = time.monotonic()

    def tell(line: str) -> None:
        print(f"[{time.monotonic() - began_s:5.1f} s] {line}", flush=True)

    counts = [int(n) for n in args.rows.split(",")]
    shapes = {(min(n, MOST_FRAMES // f), f) for n in counts for f in (1, FRAMES)} | {(64, 4), (64, 1), (64, 16)}
    compile_ahead(tell, sorted(shapes))
    with torch.inference_mode():
        ceiling = copy_bandwidth(torch.device("cuda")), product_rate(torch.device("cuda"), torch.bfloat16)
        measured = f"copies {ceiling[0] / 1e12:.2f} TB/s, products {ceiling[1] / 1e12:.0f} TFLOP/s"
        tell(f"{torch.cuda.get_device_name()}: {measured}")
        decoder = made("cuda")
        right = check_calls(decoder, tell)
        time_calls(decoder, tell, counts, ceiling)
        time_groups(decoder, tell, ceiling, (64, FRAMES))
        time_groups(decoder, tell, ceiling, (64, 1))
    tell("ALL RIGHT" if right else "WRONG: see above")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
