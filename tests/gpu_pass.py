"""One row's passes in one kernel each, on a GPU: right or not, and how fast in each form, beside Triton's chains.

    PYTHONPATH=src:tests python3 tests/gpu_pass.py [--only predictor|talker]

Not a test that pytest collects. Weights are of the published shape (1.7B), random. A frame's logits with given codes,
and the talker's states, are held against float32; what is wrong is said with WRONG, and the exit code is 1. Times are
of CUDA graphs: a whole frame's predictor without sampling, alone and after a read of 400 MB as the talker makes one
(that read taken off); a step of the talker.
"""

from __future__ import annotations

import argparse
import faulthandler
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any, cast
from unittest import mock

import torch
from torch import Tensor, nn

from sonant.kernels import ops, reference
from sonant.kernels.cuda import frame_pass, paged_pass
from sonant.kernels.cuda.compiler import build
from sonant.kernels.cuda.single_pass import Form, pass_kernel
from sonant.kernels.gpu import gpu_of
from sonant.layers.attention import PagedContext
from sonant.layers.transformer import DecoderStack
from sonant.models.qwen3_tts.config import DecoderStackConfig
from sonant.models.qwen3_tts.predictor import CodePredictor, NoDraw
from sonant.models.qwen3_tts.stack import stack_shape

DEVICE = torch.device("cuda")
LIMIT_S = 57.0
FRAME, TALKER = frame_pass._USUAL, paged_pass._FORMS[0]
FRAME_FORMS = {
    "usual": FRAME,
    "1 ahead": replace(FRAME, ahead=1),
    "3 ahead": replace(FRAME, ahead=3),
    "3 of 8 KiB ahead": replace(FRAME, pages=22, page=8192, kept=28, ahead=3),
    "none kept": replace(FRAME, kept=0),
    "20 kept": replace(FRAME, kept=20),
    "8 replicas": replace(FRAME, replicas=8),
}
TALKER_FORMS = {
    "usual": TALKER,
    "1 ahead": replace(TALKER, ahead=1),
    "3 ahead": replace(TALKER, ahead=3),
    "4 replicas": replace(TALKER, replicas=4),
}
CLOCKED = ("usual", "3 ahead")
CONTEXTS = 100, 1000, 4000
STEPS = ("qkv", "attention", "out", "gate, up", "down")


@contextmanager
def chain() -> Iterator[None]:
    with mock.patch.object(ops, "has_whole_pass", lambda *given: False):
        yield


@contextmanager
def whole(form: Form) -> Iterator[None]:
    with mock.patch.object(frame_pass, "_USUAL", form), mock.patch.object(paged_pass, "_FORMS", (form,)):
        yield


def ways(forms: Mapping[str, Form]) -> dict[str, AbstractContextManager[None]]:
    return {"chain": chain(), **{name: whole(form) for name, form in forms.items()}}


def tell_errors(what: str, expected: Tensor, got: dict[str, list[Tensor]]) -> bool:
    told, right = [], True
    for name, (first, *others) in got.items():
        error = float((first.float() - expected).norm() / expected.norm())
        fine = error < 0.03 and all(torch.equal(first, other) for other in others)
        told.append(f"{'' if fine else 'WRONG '}{name} {error:.4f}")
        right &= fine
    print(f"{what} from float32:", ", ".join(told), flush=True)
    return right


def tell_clock(name: str, clock: Tensor) -> None:
    """Cycles of a layer's steps, medians: the wait for words, then for weights, then the rest."""
    before, words, weights = (clock.long().cpu() & 0xFFFFFFFF).unbind(-1)
    told, total = [], 0.0
    for n, step in enumerate(STEPS):
        of = torch.arange(n or 5, clock.shape[1] - 1, 5)
        ends = (words[:, of] - before[:, of], weights[:, of] - words[:, of], before[:, of + 1] - weights[:, of])
        spans = [(span & 0xFFFFFFFF).double() for span in ends]
        total += sum(float(span.mean()) for span in spans)
        usual = " + ".join(f"{span.median():.0f}" for span in spans)
        told.append(f"{step} {usual} (least {spans[0].amin(0).median():.0f})")
    print(f"{name}, cycles, words + weights + rest: {'; '.join(told)}; a layer {total:.0f}", flush=True)


def median_ms(run: Callable[[], Any], repeats: int = 30) -> float:
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


class Probe:
    """Given codes in place of drawn ones, and what the predictor thought of each."""

    def __init__(self, code: Tensor) -> None:
        self.code, self.logits = code, list[Tensor]()

    def pick(self, logits: Tensor, uniform: Tensor, mask: Any = None, lookup: Any = None) -> Tensor:
        self.logits.append(logits.float().clone())
        if lookup is not None:
            lookup.fetch(self.code)
        return self.code


class Predictor:
    def __init__(self) -> None:
        config = DecoderStackConfig(2048, 1024, 3072, 5, 16, 8, 128, 1e-6, 1e6, 4096)
        with DEVICE:
            made = CodePredictor(config, 16, 2048)
        self.model = with_random_weights(made)
        self.model.prepare()
        stack = self.model.model.as_frame_stack()
        assert stack is not None
        self.stack = stack

    def logits(self, model: Any, dtype: torch.dtype) -> Tensor:
        draw = torch.Generator().manual_seed(1)
        hidden, first = (torch.randn(1, 2048, generator=draw).to(DEVICE, torch.bfloat16).to(dtype) for _ in range(2))
        probe = Probe(torch.tensor([7], device=DEVICE))
        model.generate(hidden, first, torch.zeros(1, 15, device=DEVICE), probe)
        return torch.stack(probe.logits)

    def check(self) -> bool:
        exact = deepcopy(self.model).float()
        exact.prepare()
        with mock.patch.object(ops, "pick", lambda op, on: getattr(reference, op)), chain():
            expected = self.logits(exact, torch.float32)
        got = {}
        for name, way in ways(FRAME_FORMS).items():
            with way:
                got[name] = [self.logits(self.model, torch.bfloat16) for _ in range(4)]
        return tell_errors("predictor's logits", expected, got)

    def clock(self, name: str, form: Form) -> None:
        model, head = self.model.model, cast(nn.Linear, self.model.lm_head[0]).weight
        x, out = torch.randn(1, 1024, device=DEVICE).bfloat16(), torch.empty(1, 2048, device=DEVICE).bfloat16()
        cache = torch.zeros(5, 2, 1, 16, 8, 128, device=DEVICE).bfloat16()
        clock = torch.zeros(128, 5 * 5, 3, dtype=torch.int32, device=DEVICE)
        turns = [t[:, 0] for t in model.rotations_at(range(9, 10), x.dtype)]
        with whole(form):
            for _ in range(4):
                frame_pass.run(self.stack, x, turns[0], turns[1], cache, 9, head, out, clock)
        tell_clock(f"predictor, {name}", clock)

    def measure(self) -> None:
        hidden, first = (torch.randn(1, 2048, device=DEVICE).bfloat16() for _ in range(2))
        uniforms, code = torch.zeros(1, 15, device=DEVICE), torch.tensor([7], device=DEVICE)
        big = torch.zeros(2_000_000_000, dtype=torch.bfloat16, device=DEVICE)
        copy_ms = median_ms(lambda: big[:1_000_000_000].copy_(big[1_000_000_000:]))
        big = big[:200_000_000]
        read_ms = median_ms(big.amax)
        print(f"a copy {4 / copy_ms:.2f} TB/s; the read before a frame {read_ms:.3f} ms", flush=True)

        def frame() -> Tensor:
            return self.model.generate(hidden, first, uniforms, NoDraw(code))

        tried = [*ways(FRAME_FORMS).items(), ("chain", chain()), ("usual", whole(FRAME))]
        for name, way in tried:
            with way:
                alone, after = median_ms(frame), median_ms(lambda: (big.amax(), frame())) - read_ms
            print(f"predictor, {name:20}: {alone:.3f} ms, after a talker {after:.3f}", flush=True)


class Talker:
    def __init__(self) -> None:
        config = DecoderStackConfig(3072, 2048, 6144, 28, 16, 8, 128, 1e-6, 1e6, 8192)
        with DEVICE:
            made = DecoderStack(stack_shape(config))
        self.model = with_random_weights(made)
        self.model.prepare(8192)
        stack = self.model.as_frame_stack()
        assert stack is not None
        self.stack, self.blocks = stack, 300
        self.cache = torch.randn(28, 2, self.blocks, 16, 8, 128, device=DEVICE, dtype=torch.bfloat16)
        self.x = torch.randn(1, 1, 2048, device=DEVICE, dtype=torch.bfloat16)
        self.tables = torch.randperm(self.blocks, device=DEVICE).int()[None]

    def position(self, at: int) -> Tensor:
        return torch.tensor([[at]], dtype=torch.int32, device=DEVICE)

    def by_layers(self, model: Any, cache: Tensor, at: Tensor) -> Tensor:
        context = PagedContext(cache, self.tables, at, None, self.blocks)
        return cast(Tensor, model(self.x.to(cache.dtype).clone(), at, context))

    def at_once(self, at: Tensor, clock: Tensor | None = None) -> Tensor:
        cos, sin = self.model.rotations(at, self.x.dtype)
        return paged_pass.run(self.stack, self.x, cos, sin, self.cache, self.tables, at, clock)

    def check(self) -> bool:
        exact, right = deepcopy(self.model).float(), True
        exact.prepare(8192)
        for at in (0, *CONTEXTS):
            position = self.position(at)
            with mock.patch.object(ops, "pick", lambda op, on: getattr(reference, op)), chain():
                expected = self.by_layers(exact, self.cache.float(), position)
            with chain():
                got = {"chain": [self.by_layers(self.model, self.cache, position)]}
            for name, form in TALKER_FORMS.items():
                with whole(form):
                    got[name] = [self.at_once(position) for _ in range(4)]
            right &= tell_errors(f"talker at {at}", expected, got)
        return right

    def clock(self, name: str, form: Form) -> None:
        clock = torch.zeros(128, 5 * 28, 3, dtype=torch.int32, device=DEVICE)
        with whole(form):
            for _ in range(4):
                self.at_once(self.position(1000), clock)
        tell_clock(f"talker at 1,000, {name}", clock)

    def measure(self) -> None:
        forms: dict[str, Form | None] = {"chain": None, **TALKER_FORMS}
        for name, form in forms.items():
            times = []
            for at in (self.position(at) for at in CONTEXTS):
                if form is None:
                    with chain():
                        times.append(median_ms(lambda at=at: self.by_layers(self.model, self.cache, at)))
                    continue
                with whole(form):
                    times.append(median_ms(lambda at=at: self.at_once(at)))
            told = ", ".join(f"{at} positions {ms:.3f}" for at, ms in zip(CONTEXTS, times, strict=True))
            print(f"talker, {name:20}: {told} ms", flush=True)


def with_random_weights(module: Any) -> Any:
    module = module.to(torch.bfloat16).eval()
    for name, value in module.named_parameters():
        noise = torch.randn(*value.shape, device=DEVICE)
        value.copy_(1 + 0.1 * noise if "norm" in name else noise * value.shape[-1] ** -0.5)
    return module


def build_all(forms: list[Form]) -> None:
    gpu = gpu_of(DEVICE)
    assert gpu is not None
    began_s = time.perf_counter()
    with ThreadPoolExecutor(15) as pool:
        list(pool.map(lambda form: build(pass_kernel(form).program, gpu.arch), forms))
    print(f"{len(forms)} kernels compiled in {time.perf_counter() - began_s:.1f} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("predictor", "talker"))
    args = parser.parse_args()
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)  # blocks may wait for each other for ever
    began_s, right = time.perf_counter(), True
    frames, talkers = FRAME_FORMS, TALKER_FORMS
    with ThreadPoolExecutor(1) as aside, torch.no_grad():
        clocked = [replace(forms[name], clocked=1) for forms in (frames, talkers) for name in CLOCKED]
        built = aside.submit(build_all, [*frames.values(), *talkers.values(), *clocked])
        parts: list[tuple[Any, dict[str, Form]]] = []
        if args.only != "talker":
            parts.append((Predictor(), frames))
        if args.only != "predictor":
            parts.append((Talker(), talkers))
        built.result()
        print(f"-- ready after {time.perf_counter() - began_s:.1f} s", flush=True)
        for part, forms in parts:
            right &= part.check()
            for name in CLOCKED:
                part.clock(name, replace(forms[name], clocked=1))
            part.measure()
            print(f"-- {time.perf_counter() - began_s:.1f} s", flush=True)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
