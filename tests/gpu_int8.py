"""The codec's widest convolutions in eight bits on a Hopper GPU: are they right, and what do they save?

    python tests/gpu_int8.py

Not a test that pytest collects: it needs a GPU and less than a minute. Kernels compile first. Then come errors against
the reference, µs of a unit in both types and of the rounding of its inputs alone, and ms of whole calls of the codec
with their error against float32. The exit code is 0 if all was right.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
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
from sonant.kernels.cuda import conv, int8_unit
from sonant.kernels.triton.int8_lines import int8_lines
from sonant.kernels.triton.unit import residual_unit
from sonant.models.qwen3_tts.codec import CodecDecoder, ResidualUnit
from sonant.models.qwen3_tts.codec_int8 import quantize_units
from sonant.text_table import grid

CUDA = torch.device("cuda")
FRAMES = (16, 8, 4, 1)
SHAPES = ((768, 512), (384, 2560), (192, 10240))  # channels, steps in 16 frames
LAYOUTS = {
    "own": (int8_unit.WIDE, int8_unit.WHOLE),
    "other rings": (replace(int8_unit.WIDE, parts=4), replace(int8_unit.WHOLE, parts=2)),
    "other groups": (replace(int8_unit.WIDE, groups=3, halves=1), replace(int8_unit.WHOLE, groups=2, parts=4)),
}


def call_of(channels: int, batch: int, steps: int, dilation: int = 3) -> UnitCall:
    call = unit_call(channels, batch, steps, dilation, device="cuda")
    largest = call.active.abs().amax((0, 1)).float()
    return call._replace(unit=call.unit._replace(int8=reference.int8_weight(call.unit.wide, largest)))


def by_layout(call: UnitCall, layouts: tuple[conv.Layout, conv.Layout]) -> tuple[torch.Tensor, torch.Tensor]:
    wide, whole = layouts
    with mock.patch.object(int8_unit, "LAYOUTS", {768: wide, 384: wide, 192: whole}):
        return int8_unit.residual_unit(*call)


def error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.float() - expected.float()).norm() / expected.float().norm())


def check() -> dict[str, float]:
    found = dict.fromkeys(LAYOUTS, 0.0)
    for channels, batch, steps, dilation in ((384, 3, 300, 1), (768, 2, 1100, 9), (192, 9, 700, 9), (192, 70, 640, 1)):
        call = call_of(channels, batch, steps, dilation)
        expected = reference.int8_unit(*call)
        for name, layouts in LAYOUTS.items():
            found[name] = max(found[name], *map(error, by_layout(call, layouts), expected))
    return found


def time_unit(call: UnitCall, right: dict[str, float]) -> tuple[str, ...]:
    unit, (batch, steps, channels) = call.unit, call.active.shape
    assert unit.int8 is not None
    flops, inverse = 2 * batch * steps * 8 * channels**2, unit.int8.inverse

    def told(run: Callable[[], object]) -> str:
        ms = graphed_ms(run)
        return f"{1e3 * ms:.0f} ({flops / ms / 1e9:.0f})"

    rounding = graphed_ms(lambda: int8_lines(call.active, call.past, unit.history, inverse))
    cells = [
        told(lambda layouts=layouts: by_layout(call, layouts)) if right[name] < 1e-2 else "wrong"
        for name, layouts in LAYOUTS.items()
    ]
    wide = told(lambda: residual_unit(*call._replace(unit=unit._replace(int8=None))))
    return wide, f"{1e3 * rounding:.0f}", *cells


def time_units(right: dict[str, float]) -> None:
    lines = [("units, 64 × 16", "bf16", "rounding", *LAYOUTS)]
    lines += [(str(c), *time_unit(call_of(c, 64, steps), right)) for c, steps in SHAPES]
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
    more = [conv.conv_kernel(layout).form for layouts in LAYOUTS.values() for layout in layouts]
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
        time_units(right)
    with torch.no_grad():
        good = whole_calls() and right["own"] < 1e-2
    print("ALL RIGHT" if good else "WRONG: see above")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
