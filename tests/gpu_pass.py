"""Passes of one row in one kernel, on a GPU: are they right, and how fast is each form, compared with Triton's chains,
in bfloat16 and with weights of eight bits?

    PYTHONPATH=src:tests python3 tests/gpu_pass.py [--only predictor|talker] [--bits 16|8]

Not a test that pytest collects. Weights are random, in the published shape (1.7B). A frame's logits with given codes,
and the talker's states, are compared with float32 (of the same eight bits, where weights have them), four times each;
what is wrong, or not the same each time, is printed with WRONG, and the exit code is 1. Times are of CUDA graphs: of a
whole frame's predictor without sampling, alone and after a read of 400 MB like the talker's (the time of that read is
subtracted); and of a step of the talker.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from torch import Tensor

from gpu_pass_models import DEVICE, Predictor, Talker, chain, median_ms, whole, with_least_numbers
from sonant.kernels.cuda import frame_pass, paged_pass
from sonant.kernels.cuda.compiler import BuildError, build
from sonant.kernels.cuda.single_pass import Form, in_eight_bits, pass_kernel
from sonant.kernels.gpu import gpu_of

LIMIT_S = 88.0
STEPS = ("qkv", "attention", "out", "gate, up", "down")
FRAME, TALKER = frame_pass._USUAL, paged_pass._FORMS[0]
FRAME_8, TALKER_8 = in_eight_bits(FRAME), paged_pass._FORMS[2]
FORMS: dict[tuple[str, int], dict[str, Form]] = {
    ("predictor", 16): {"usual": FRAME, "none held": replace(FRAME, held=0), "3 ahead": replace(FRAME, ahead=3)},
    ("talker", 16): {"usual": TALKER, "8 replicas": replace(TALKER, replicas=8)},
    ("predictor", 8): {
        "usual": FRAME_8,
        "none held": replace(FRAME_8, held=0),
        "2 ahead": replace(FRAME_8, ahead=2),
        "2 replicas": replace(FRAME_8, replicas=2),
    },
    ("talker", 8): {
        "usual": TALKER_8,
        "8 replicas": replace(TALKER_8, replicas=8),
        "3 ahead": replace(TALKER_8, ahead=3),
        "2 of 16 KiB ahead": in_eight_bits(TALKER, page=16384),
    },
}


def ways(forms: Mapping[str, Form]) -> dict[str, AbstractContextManager[None]]:
    return {"chain": chain(), **{name: whole(form) for name, form in forms.items()}}


def is_right(part: Predictor | Talker, title: str, forms: Mapping[str, Form]) -> bool:
    """Compare each form with float32, four times → whether all were right."""
    right = True
    for what, expected in part.exact().items():
        told = []
        for name, way in ways(forms).items():
            with way:
                first, *others = [part.once(what).float() for _ in range(4)]
            error = float((first - expected).norm() / expected.norm())
            fine = error < 0.03 and (name == "chain" or all(torch.equal(first, other) for other in others))
            told.append(f"{'' if fine else 'WRONG '}{name} {error:.4f}")
            right &= fine
        print(f"{title}, {what} from float32:", ", ".join(told), flush=True)
    return right


def tell_clock(title: str, clock: Tensor) -> None:
    """Print the median cycles of a layer's steps: the wait for words, then for weights, then the rest."""
    before, words, weights = (clock.long().cpu() & 0xFFFFFFFF).unbind(-1)
    told, total = [], 0.0
    for n, step in enumerate(STEPS):
        of = torch.arange(n or 5, clock.shape[1] - 1, 5)
        ends = (words[:, of] - before[:, of], weights[:, of] - words[:, of], before[:, of + 1] - weights[:, of])
        spans = [(span & 0xFFFFFFFF).double() for span in ends]
        total += sum(float(span.mean()) for span in spans)
        usual = " + ".join(f"{span.median():.0f}" for span in spans)
        told.append(f"{step} {usual} (least {spans[0].amin(0).median():.0f})")
    print(f"{title}, cycles, words + weights + rest: {'; '.join(told)}; a layer {total:.0f}", flush=True)


def tell_times(part: Predictor | Talker, title: str, forms: Mapping[str, Form]) -> None:
    again = {"chain": chain(), "usual": whole(forms["usual"])}
    for name, way in (*ways(forms).items(), *again.items()):
        with way:
            times = part.times()
        told = ", ".join(f"{what} {ms:.3f}" for what, ms in times.items())
        print(f"{title}, {name:20}: {told} ms", flush=True)


def build_all(forms: Iterable[Form]) -> set[Form]:
    """Build all forms → those that could be built."""
    gpu = gpu_of(DEVICE)
    assert gpu is not None
    began_s = time.perf_counter()

    def built(form: Form) -> Form | None:
        try:
            build(pass_kernel(form).program, gpu.arch)
        except BuildError as error:
            print(f"WRONG, not built: {form}: {error}", flush=True)
            return None
        return form

    with ThreadPoolExecutor(15) as pool:
        made = {form for form in pool.map(built, forms) if form is not None}
    print(f"{len(made)} kernels compiled in {time.perf_counter() - began_s:.1f} s", flush=True)
    return made


def copy_speed() -> float:
    """The copy bandwidth in TB/s, reads and writes together."""
    one, other = torch.zeros(2, 1_000_000_000, dtype=torch.bfloat16, device=DEVICE)
    return 4 / median_ms(lambda: one.copy_(other))


def measure(name: str, bits: int, forms: Mapping[str, Form]) -> bool:
    if "usual" not in forms:
        return False
    part, title = (Predictor if name == "predictor" else Talker)(bits), f"{name}, {bits} bits"
    for form in forms.values():
        with whole(form):
            told = part.refusal()
        if told is not None:  # otherwise a chain would be measured under this name
            print(f"WRONG: {title} is refused: {told}", flush=True)
            return False
    right = is_right(part, title, forms)
    with whole(replace(forms["usual"], clocked=1)):
        tell_clock(title, part.clock())
    tell_times(part, title, forms)
    if bits == 8:
        with_least_numbers(part.model)
        right &= is_right(part, f"{title}, subnormal weights", {"usual": forms["usual"]})
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("predictor", "talker"))
    parser.add_argument("--bits", type=int, choices=(16, 8))
    args = parser.parse_args()
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)  # a fault could make blocks wait for each other for ever
    os.environ |= {frame_pass.VARIABLE: "cuda", paged_pass.VARIABLE: "cuda"}
    asked = {of: forms for of, forms in FORMS.items() if args.only in (None, of[0]) and args.bits in (None, of[1])}
    began_s, right = time.perf_counter(), True
    with torch.no_grad():
        clocked = [replace(forms["usual"], clocked=1) for forms in asked.values()]
        every = [form for some in asked.values() for form in some.values()]
        pairs = [frame_pass.opening(form) for form in every if form.source == frame_pass._USUAL.source]
        made = build_all([*every, *pairs, *clocked])
        print(f"-- ready after {time.perf_counter() - began_s:.1f} s; a copy {copy_speed():.2f} TB/s", flush=True)
        for (name, bits), forms in asked.items():
            right &= measure(name, bits, {title: form for title, form in forms.items() if form in made})
            gc.collect()  # frees the stack: in a process only one stack at a time has the processors
            print(f"-- {time.perf_counter() - began_s:.1f} s", flush=True)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
