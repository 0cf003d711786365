"""Convolutions and residual units of Qwen3-TTS's codec on a Hopper GPU, by layer: ours in CUDA C++ against Triton's.

    python tests/gpu_conv.py

Not a test that pytest collects: it needs a GPU and less than a minute. Kernels compile first, in as many processes as
there are cores. All are compared with float32 before any is timed; then come µs and TFLOP/s of every layout that is
right, and ms of whole calls. The exit code is 0 if the dispatcher's choices were right.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import torch

from codec_account import H200, Rows, made, plain_attention, recorded
from gpu_codec import compile_form, graphed_ms
from kernels.conv_cases import ConvCall, conv_call, exact_conv_call
from kernels.unit_cases import UnitCall, exact, unit_call
from sonant.bench.engine.device_clock import copy_bandwidth, product_rate
from sonant.kernels import ops
from sonant.kernels.cuda import conv, unit
from sonant.kernels.cuda.conv import Layout
from sonant.kernels.triton import conv_one
from sonant.kernels.triton.conv import causal_conv
from sonant.kernels.triton.unit import residual_unit as triton_unit
from sonant.models.qwen3_tts.codec import CodecDecoder
from sonant.text_table import grid

CALLS = ((64, 16), (64, 1), (16, 1), (1, 16))


@dataclass(frozen=True)
class Kind:
    name: str
    inputs: int
    columns: int
    taps: int
    steps: int  # of a row of 16 frames
    options: dict[str, Any]

    @property
    def layouts(self) -> dict[str, Layout]:
        """The dispatcher's layout, and other possible ones."""
        weight = torch.empty(self.columns, self.inputs, self.taps, device="meta")
        own = conv.layout_for(64, self.steps, weight, self.options.get("dilation", 1))
        assert own is not None
        if own.inputs:
            return {"own": own}
        return {"own": own, "three": replace(own, groups=3, halves=1), "other rings": replace(own, parts=own.parts - 1)}


KINDS = [
    Kind("first", 1024, 1536, 7, 64, {}),
    *(Kind(f"{c} × 7", c, c, 7, s, {"dilation": 3}) for c, s in ((768, 512), (384, 2560), (192, 10240))),
    Kind("1536→768", 1536, 6144, 2, 64, {"samples": 8}),
    Kind("768→384", 768, 1920, 2, 512, {"samples": 5}),
    Kind("384→192", 384, 768, 2, 2560, {"samples": 4}),
    Kind("192→96", 192, 288, 2, 10240, {"samples": 3}),
]
UNITS = {
    "own": conv.UNIT,
    "two": replace(conv.UNIT, groups=2, halves=2),
    "one half": replace(conv.UNIT, groups=2, halves=1, parts=5),
}


def convolved(call: ConvCall, layout: Layout, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return conv.causal_conv(*call[:5], snake=call.snake, layout=layout, **options)


def error(got: Any, expected: Any) -> float:
    return max(float((g.float() - e).norm() / e.norm()) for g, e in zip(got, expected, strict=True))


def check() -> dict[str, float]:
    """The largest relative error of each layout. Run in a child process."""
    found: dict[str, float] = {}
    for kind in KINDS:
        for name, layout in kind.layouts.items():
            wrong = 0.0
            for batch, steps, dilation in ((3, 300, 1), (140, 512, 9), (2, 1100, 3)):
                options = {**kind.options, "dilation": min(dilation, layout.most_past // 6) or 1}
                call = conv_call(kind.inputs, kind.columns, kind.taps, batch, steps, device="cuda", **options)
                wrong = max(wrong, error(convolved(call, layout), exact_conv_call(call)))
            found[f"{kind.name} {name}"] = wrong
    for batch, steps, dilation, past in ((1, 128, 1, True), (3, 300, 3, False), (140, 512, 9, True)):
        for channels in (192, 96):
            call = unit_call(channels, batch, steps, dilation, past=past, device="cuda")
            expected = exact(call)
            for name, run in unit_runs(call).items():
                found[name] = max(found.get(name, 0.0), error(run(), expected))
    return found


def unit_runs(call: UnitCall) -> dict[str, Callable[[], Any]]:
    """The unit's call by every layout for its channels."""
    channels = call.x.shape[2]
    if channels == 96:
        return {"unit 96": lambda: unit.residual_unit(*call)}
    return {
        f"unit {channels} {name}": lambda layout=layout: conv.residual_unit(*call, layout=layout)
        for name, layout in UNITS.items()
    }


def us_and_rate(run: Callable[[], object], flops: float) -> str:
    ms = graphed_ms(run)
    return f"{1e3 * ms:.0f} ({flops / ms / 1e9:.0f})"


def time_kinds(right: dict[str, float], tell: Callable[[str], None]) -> None:
    names = ("own", "three", "other rings")
    lines = [("convolution, 64 × 16", "Triton", *names)]
    for kind in KINDS:
        call = conv_call(kind.inputs, kind.columns, kind.taps, 64, kind.steps, device="cuda", **kind.options)
        flops, keep = 2 * 64 * kind.steps * kind.taps * kind.inputs * kind.columns, kind.taps < 7
        with without():
            cells = [us_and_rate(lambda: call.of(causal_conv, keep=keep), flops)]  # noqa: B023
        for name in names:
            layout = kind.layouts.get(name)
            fits = layout is not None and right[f"{kind.name} {name}"] < 1.5e-2
            cells.append(us_and_rate(lambda: convolved(call, layout, keep=keep), flops) if fits else "")  # noqa: B023
        lines.append((kind.name, *cells))
    tell("µs (TFLOP/s)\n" + grid(lines))


def time_units(right: dict[str, float], tell: Callable[[str], None]) -> None:
    names = ["Triton", "unit 96", *(f"unit 192 {name}" for name in UNITS)]
    lines = [("unit", "rows × steps", *names)]
    for channels, a_frame in ((192, 640), (96, 1920)):
        for batch, frames in ((64, 16), (64, 1), (16, 16), (16, 1), (1, 16)):
            call = unit_call(channels, batch, a_frame * frames, 3, device="cuda")
            flops = 2 * batch * frames * a_frame * 8 * channels**2
            with without():
                cells = {"Triton": us_and_rate(lambda: triton_unit(*call), flops)}  # noqa: B023
            for name, run in unit_runs(call).items():
                if right[name] < 1.5e-2:
                    cells[name] = us_and_rate(run, flops)
            lines.append((str(channels), f"{batch} × {a_frame * frames}", *(cells.get(n, "") for n in names)))
    tell("µs (TFLOP/s)\n" + grid(lines))


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Use Triton's kernels: for `conv`, for `unit`, or without a name for both."""
    with ExitStack() as stack:
        for module in (conv, unit):
            if not names or module.__name__.rsplit(".")[-1] in names:
                stack.enter_context(mock.patch.object(module, "takes", lambda *given: False))
        yield


WAYS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "before": without, "units": partial(without, "conv"), "units, convolutions": nullcontext,
}  # fmt: skip


def time_calls(decoder: CodecDecoder, tell: Callable[[str], None]) -> None:
    lines = [("rows × frames", *WAYS)]
    for count, frames in CALLS:
        rows, index = Rows(decoder, count, "cuda"), torch.arange(count, device="cuda")
        cells = []
        for way in WAYS.values():
            with way():
                cells.append(f"{graphed_ms(lambda: rows.call(index, frames)):.3f}")  # noqa: B023
        lines.append((f"{count} × {frames}", *cells))
    tell("ms of a call\n" + grid(lines))


def check_calls(decoder: CodecDecoder, tell: Callable[[str], None]) -> bool:
    """Compare pieces of 64 rows with the plain decoder in float32, without kernels of ours."""
    count, pieces = 64, (1, 16, 16)
    codes = torch.randint(0, 2048, (count, sum(pieces), 16), device="cuda", dtype=torch.int32)

    def spoken(model: CodecDecoder, dtype: torch.dtype) -> torch.Tensor:
        rows, index = Rows(model, count, "cuda", dtype), torch.arange(count, device="cuda")
        made = []
        for piece in codes.split(pieces, 1):
            rows.codes[:, : piece.shape[1]] = piece
            made.append(rows.call(index, piece.shape[1]))
        return torch.cat(made, 1)

    exact_decoder = deepcopy(decoder).float()
    exact_decoder.prepare()
    torch.backends.cudnn.allow_tf32 = False
    with torch.enable_grad(), mock.patch.object(ops, "ring_attention", plain_attention):
        truth = spoken(exact_decoder, torch.float32).detach()
    wrong = {}
    for name, way in WAYS.items():
        with way():
            got = spoken(decoder, torch.bfloat16)
            wrong[name] = float((got - truth).norm() / truth.norm())
    tell("calls against float32: " + ", ".join(f"{name} {off:.2e}" for name, off in wrong.items()))
    return max(wrong.values()) < 1.1 * wrong["before"] < 0.1


LAST = ((128, 32, 4, 3), (256, 32, 8, 3), (64, 32, 4, 3), (128, 16, 4, 4))  # lines, depth, warps, stages


@contextmanager
def last_by(lines: int, block: int, warps: int, stages: int) -> Iterator[None]:
    """Compute the last convolution with programs of other sizes."""
    names = {"_LINES": lines, "_BLOCK_K": block, "_WARPS": warps, "_STAGES": stages}
    with mock.patch.multiple(conv_one, **names):
        yield


def last(device: str = "cuda") -> ConvCall:
    return conv_call(96, 1, 7, 64, 30720, snake=False, device=device)


def time_last(tell: Callable[[str], None]) -> None:
    call, cells = last(), []
    expected = exact_conv_call(call)
    for sizes in LAST:
        with last_by(*sizes):
            wrong = error(call.of(causal_conv), expected)
            ms = graphed_ms(lambda: call.of(causal_conv))
        cells.append(f"{sizes} {1e3 * ms:.0f}{'' if wrong < 1e-2 else ' WRONG'}")
    tell("last convolution by lines, depth, warps, stages, µs: " + ", ".join(cells))


def programs() -> Iterator[Any]:
    layouts = [layout for kind in KINDS for layout in kind.layouts.values()] + list(UNITS.values())
    for layout in dict.fromkeys(layouts):
        yield conv.conv_kernel(layout).form
    yield unit.thin_kernel().form


def compile_ahead(tell: Callable[[str], None]) -> None:
    forms = list(programs())
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 1), multiprocessing.get_context("spawn")) as pool:
        asked = [pool.submit(compile_form, form) for form in forms]
        decoder = made("meta")
        with without():
            launches = recorded(decoder, list(CALLS))[0]
            for sizes in LAST:
                with last_by(*sizes):
                    launches += recorded(decoder, [(64, 16)])[0]
        found = {(form.module, form.name, form.key): form for form in launches}
        asked += [pool.submit(compile_form, form) for form in found.values()]
        failures = [line for line in (one.result() for one in asked) if line]
    tell(f"{len(asked)} kernels" + "".join(f"\nFAILED {line}" for line in failures))


def main() -> int:
    began_s = time.monotonic()

    def tell(line: str) -> None:
        print(f"[{time.monotonic() - began_s:5.1f} s] {line}", flush=True)

    with torch.inference_mode():
        if sys.argv[1:] == ["--check"]:
            print(json.dumps(check()))
            return 0
        compile_ahead(tell)
        try:
            done = subprocess.run([sys.executable, __file__, "--check"], timeout=60, capture_output=True, text=True)
        except subprocess.TimeoutExpired:
            tell("HANGS")
            return 1
        if done.returncode:
            tell(f"CHECK FAILED\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
            return 1
        right: dict[str, float] = json.loads(done.stdout)
        tell("off by " + ", ".join(f"{name} {wrong:.1e}" for name, wrong in right.items()))
        ceiling = copy_bandwidth(torch.device("cuda")), product_rate(torch.device("cuda"), torch.bfloat16)
        tell(f"copies {ceiling[0] / 1e12:.2f} TB/s, products {ceiling[1] / 1e12:.0f} TFLOP/s ({H200.name})")
        time_units(right, tell)
        time_kinds(right, tell)
        time_last(tell)
    with torch.no_grad():
        decoder = made("cuda")
        good = check_calls(decoder, tell)
        time_calls(decoder, tell)
    good &= all(wrong < 1.5e-2 for name, wrong in right.items() if not name.endswith("rings"))
    tell("ALL RIGHT" if good else "WRONG: see above")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
