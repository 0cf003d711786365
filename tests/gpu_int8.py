"""The codec's widest convolutions in eight bits on a Hopper GPU: are they right, and what do they save?

    python tests/gpu_int8.py

Not a test that pytest collects: it needs a GPU and less than a minute. Kernels compile first. Then come the error
against the reference, µs of one convolution in both types with the rounding of its inputs apart, and ms of whole calls
of the codec with their distance from float32. The exit code says whether all was right.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from dataclasses import replace
from unittest import mock

import torch

from codec_account import Rows, made, plain_attention, recorded
from gpu_codec import compile_form, graphed_ms
from kernels.unit_cases import UnitCall, unit_call
from sonant.bench.engine.device_clock import copy_bandwidth, product_rate
from sonant.kernels import ops, reference
from sonant.kernels.cuda import conv, int8_conv
from sonant.kernels.reference import Unit
from sonant.kernels.triton.int8_lines import int8_lines
from sonant.kernels.triton.unit import residual_unit
from sonant.models.qwen3_tts.codec import CodecDecoder, ResidualUnit
from sonant.models.qwen3_tts.codec_int8 import quantize_units
from sonant.text_table import grid

CUDA = torch.device("cuda")
FRAMES = (16, 8, 4, 1)
SHAPES = ((768, 512), (384, 2560))  # channels, steps of 16 frames
LAYOUTS = {
    "own": int8_conv.LAYOUT,
    "three": replace(int8_conv.LAYOUT, groups=3, halves=1),
    "four parts": replace(int8_conv.LAYOUT, parts=4),
}


def call_of(channels: int, batch: int, steps: int, dilation: int = 3) -> UnitCall:
    call = unit_call(channels, batch, steps, dilation, device="cuda")
    largest = call.active.abs().amax((0, 1)).float()
    return call._replace(unit=call.unit._replace(int8=reference.int8_weight(call.unit.wide, largest)))


def by_layout(call: UnitCall, layout: conv.Layout) -> torch.Tensor:
    unit = call.unit
    assert unit.int8 is not None
    with mock.patch.object(int8_conv, "LAYOUT", layout):
        return int8_conv.int8_conv(call.active, unit.int8, unit.wide_bias, call.past, unit.dilation, unit.between)


def error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.float() - expected.float()).norm() / expected.float().norm())


def check() -> dict[str, float]:
    found = {}
    for name, layout in LAYOUTS.items():
        wrong = 0.0
        for channels, batch, steps, dilation in ((384, 3, 300, 1), (768, 2, 1100, 9), (384, 70, 512, 3)):
            call = call_of(channels, batch, steps, dilation)
            unit = call.unit
            assert unit.int8 is not None
            expected = reference.int8_conv(
                call.active, unit.int8, unit.wide_bias, call.past, unit.dilation, unit.between
            )
            wrong = max(wrong, error(by_layout(call, layout), expected))
        found[name] = wrong
    return found


def time_convolution(call: UnitCall, right: dict[str, float]) -> tuple[str, ...]:
    unit, (batch, steps, channels) = call.unit, call.active.shape
    assert unit.int8 is not None
    flops, inverse = 2 * batch * steps * 7 * channels**2, unit.int8.inverse

    def told(ms: float) -> str:
        return f"{1e3 * ms:.0f} ({flops / ms / 1e9:.0f})"

    def unit_us(of: Unit) -> str:
        return f"{1e3 * graphed_ms(lambda: residual_unit(call.x, call.active, of, call.past, call.following)):.0f}"

    given = (call.active, unit.wide, unit.wide_bias, call.past, unit.dilation)
    wide = graphed_ms(lambda: conv.causal_conv(*given, snake=unit.between, keep=False))
    rounding = graphed_ms(lambda: int8_lines(call.active, call.past, unit.history, inverse))
    cells = [
        told(graphed_ms(lambda layout=layout: by_layout(call, layout)) - rounding) if right[name] < 1e-2 else "wrong"
        for name, layout in LAYOUTS.items()
    ]
    return told(wide), f"{1e3 * rounding:.0f}", *cells, unit_us(unit._replace(int8=None)), unit_us(unit)


def time_convolutions(right: dict[str, float]) -> None:
    lines = [("64 × 16", "bf16", "rounding", *LAYOUTS, "unit bf16", "unit int8")]
    lines += [(str(c), *time_convolution(call_of(c, 64, steps), right)) for c, steps in SHAPES]
    print("µs (Top/s)\n" + grid(lines), flush=True)


def spoken(decoder: CodecDecoder, codes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    rows, index = Rows(decoder, len(codes), "cuda", dtype), torch.arange(len(codes), device=CUDA)
    found = []
    for piece in codes.split((16, 16), 1):
        rows.codes[:, : piece.shape[1]] = piece
        found.append(rows.call(index, piece.shape[1]))
    return torch.cat(found, 1)


def whole_calls() -> bool:
    decoder = made("cuda")
    codes = torch.randint(0, 2048, (64, 32, 16), device=CUDA, dtype=torch.int32)
    exact = deepcopy(decoder).float()
    exact.prepare()
    torch.backends.cudnn.allow_tf32 = False
    with torch.enable_grad(), mock.patch.object(ops, "ring_attention", plain_attention):
        truth = spoken(exact, codes, torch.float32).detach()
    del exact
    found, index = {}, torch.arange(64, device=CUDA)
    for name in ("bf16", "int8"):
        if name == "int8":
            quantize_units(decoder)
            print([type(u.int8).__name__ for u in decoder.modules() if isinstance(u, ResidualUnit)], flush=True)
        got = spoken(decoder, codes, torch.bfloat16)
        rows = Rows(decoder, 64, "cuda")
        found[name] = error(got, truth)
        times = ", ".join(f"64 × {n} {graphed_ms(lambda n=n: rows.call(index, n)):.3f}" for n in FRAMES)  # noqa: B023
        print(f"calls in {name}, ms: {times}; {found[name]:.2e} from float32", flush=True)
    return found["int8"] < 3 * found["bf16"] < 0.3


def compile_ahead() -> None:
    decoder = made("meta")
    quantize_units(decoder)
    forms = recorded(decoder, [(64, frames) for frames in FRAMES])[0]
    decoder = made("meta")
    forms += recorded(decoder, [(64, frames) for frames in FRAMES])[0]
    found = {(form.module, form.name, form.key): form for form in forms}
    more = [conv.conv_kernel(layout).form for layout in LAYOUTS.values()]
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 1), multiprocessing.get_context("spawn")) as pool:
        failures = [line for line in pool.map(compile_form, [*found.values(), *more]) if line]
    print(f"{len(found) + len(more)} kernels" + "".join(f"\nFAILED {line}" for line in failures), flush=True)


def main() -> int:
    compile_ahead()
    with torch.inference_mode():
        right = check()
        print("off by " + ", ".join(f"{name} {wrong:.1e}" for name, wrong in right.items()), flush=True)
        rates = copy_bandwidth(CUDA) / 1e12, product_rate(CUDA, torch.bfloat16) / 1e12
        print(f"copies {rates[0]:.2f} TB/s, products {rates[1]:.0f} TFLOP/s", flush=True)
        time_convolutions(right)
    with torch.no_grad():
        good = whole_calls() and right["own"] < 1e-2
    print("ALL RIGHT" if good else "WRONG: see above")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
