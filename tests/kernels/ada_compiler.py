"""Compiles for Ada the kernels that need most shared memory, at our families' sizes, and prints each one's maximum.

Run by test_shared_memory.py in a process of its own, on any machine: launches are recorded and not made.
"""

from __future__ import annotations

import importlib
from collections import Counter

import torch
import triton
from torch import Tensor
from triton.compiler import ASTSource

from sonant.kernels import ops
from sonant.kernels.gpu import Gpu, planning_for
from sonant.kernels.recorded_launches import AnyForm, KernelForm, LaunchRecorder, launches_recorded
from sonant.kernels.reference import FlowEnds, FlowGiven, Heads, RingPlace, Sides, Snake, Split
from sonant.kernels.triton_setup import target_of

ADA = Gpu("NVIDIA L40S", (8, 9))
BF16, FLOAT = torch.bfloat16, torch.float32


def values(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def numbers(*shape: int) -> Tensor:
    return values(*shape, dtype=torch.int32)


def products() -> None:
    for rows in (16, 32, 64):
        for depth, columns in ((2048, 4096), (6144, 2048)):
            ops.linear(values(rows, 1, depth), values(columns, depth))
        ops.norm_gated(values(rows, 1, 2048), values(2048), 1e-6, values(2 * 6144, 2048))
    for rows in (64, 600):
        split = Split(numbers(1, rows), numbers(rows), numbers(2))
        up, down, gains = (Sides(values(*s), values(*s)) for s in ((16384, 3072), (3072, 8192), (3072,)))
        ops.dual_norm_gated(values(1, rows, 3072), split, gains, 1e-5, up)
        ops.dual_linear_add(values(1, rows, 8192), split, down, values(1, rows, 3072))


def convolutions() -> None:
    for inputs, columns, taps in ((1536, 6144, 2), (768, 768, 7), (96, 96, 7)):
        for rows in (1, 100_000):
            weight, channels = values(columns, taps, inputs).permute(0, 2, 1), values(columns)
            snake, past = Snake(channels, channels), values(1, taps - 1, inputs)
            ops.causal_conv(values(1, rows, inputs), weight, channels, past, snake=snake)


def attention() -> None:
    heads = Heads(values(128), values(128), values(2, 1, 1, 128), values(2, 1, 1, 128), 16, 8, 1e-6)
    for dtype in (BF16, torch.float8_e4m3fn):
        cache = values(2, 50, 16, 8, 128, dtype=dtype)
        ops.paged_step(values(2, 1, 32 * 128), heads, cache, numbers(2, 9), numbers(2, 1), 9)
        ops.paged_attention(values(2, 9, 16, 128), cache, numbers(2, 9), numbers(2, 9), 9)
    heads = Heads(None, None, values(2, 4, 1, 64), values(2, 4, 1, 64), 16, 16, 1e-5)
    ops.ring_attention(
        values(2, 4, 48 * 64), heads, values(2, 9, 88, 16, 64), RingPlace(numbers(2), numbers(2, 4), 72, 88)
    )
    heads = Heads(None, None, values(1, 11, 1, 128), values(1, 11, 1, 128), 16, 2, 1e-5)
    ops.local_attention_add(values(5, 11, 20 * 128), heads, values(1024, 2048), values(5, 11, 1024))


def flow(dtype: torch.dtype) -> None:
    def own(*shape: int) -> Tensor:
        return values(*shape, dtype=dtype)

    given = FlowGiven(own(2, 2, 1024), own(2, 4, 1024), values(2, dtype=FLOAT))
    ends = FlowEnds(own(1024, 64), own(1024), own(1024), 1e-5, own(64, 1024), own(64))
    ops.flow_turn(values(2, 4, 64, dtype=FLOAT), own(4, 11, 1024), 0.1, own(1024), given, ends)


def main() -> None:
    forms: list[AnyForm] = []
    with torch.no_grad(), planning_for(ADA), launches_recorded(LaunchRecorder(ADA, forms.append)):
        products()
        convolutions()
        attention()
        flow(BF16)
        flow(FLOAT)
    needed: Counter[str] = Counter()
    for form in forms:
        assert isinstance(form, KernelForm), "what Ada has is in Triton"
        kernel = getattr(importlib.import_module(form.module), form.name)
        source = ASTSource(kernel, dict(form.signature), dict(form.constants), dict(form.attributes))
        compiled = triton.compile(source, target=target_of(ADA), options=dict(form.options))
        needed[form.name] = max(needed[form.name], compiled.metadata.shared)
    print("\n".join(f"{name} {most}" for name, most in needed.items()))


if __name__ == "__main__":
    main()
