"""The models that gpu_pass.py measures: a predictor and a talker of the published shape (1.7B) with random weights, in
bfloat16 or with layers of eight bits, whose layers run in one kernel or one by one."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, cast
from unittest import mock

import torch
from torch import Tensor, nn

from sonant.kernels import ops, reference
from sonant.kernels.cuda import frame_pass, paged_pass
from sonant.kernels.cuda.single_pass import Form
from sonant.kernels.reference import quantize
from sonant.kernels.reference.quantized import E4M3
from sonant.layers.attention import PagedContext
from sonant.layers.quantized import QuantizedLinear
from sonant.layers.transformer import DecoderStack, quantize_projections
from sonant.models.qwen3_tts.config import DecoderStackConfig
from sonant.models.qwen3_tts.predictor import CodePredictor, NoDraw
from sonant.models.qwen3_tts.stack import stack_shape

DEVICE = torch.device("cuda")
CONTEXTS = 100, 1000, 4000


@contextmanager
def chain() -> Iterator[None]:
    with mock.patch.object(ops, "has_whole_pass", lambda *given: False):
        yield


@contextmanager
def whole(form: Form) -> Iterator[None]:
    with mock.patch.object(frame_pass, "_FORMS", (form,)), mock.patch.object(paged_pass, "_FORMS", (form,)):
        yield


@contextmanager
def in_torch() -> Iterator[None]:
    with mock.patch.object(ops, "pick", lambda op, on: getattr(reference, op)), chain():
        yield


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


def with_random_weights(module: Any, bits: int) -> Any:
    module = module.to(torch.bfloat16).eval()
    for name, value in module.named_parameters():
        noise = torch.randn(*value.shape, device=DEVICE)
        value.copy_(1 + 0.1 * noise if "norm" in name else noise * value.shape[-1] ** -0.5)
    if bits == 16:
        return module
    wide = {name: part.weight for name, part in module.named_modules() if isinstance(part, nn.Linear)}
    quantize_projections(module)
    for name, part in module.named_modules():
        if isinstance(part, QuantizedLinear):
            made = quantize(wide[name])
            part.values.copy_(made.values)
            part.scale.copy_(made.scale)
    return module


def with_least_numbers(module: Any) -> None:
    """Replace weights of eight bits by numbers that are subnormal in e4m3, with about the same norm."""
    for part in module.modules():
        if isinstance(part, QuantizedLinear):
            bits = torch.randint(1, 8, part.values.shape, device=DEVICE, dtype=torch.uint8)
            signs = torch.randint(0, 2, part.values.shape, device=DEVICE, dtype=torch.uint8) * 128
            part.values.copy_((bits + signs).view(E4M3))
            part.scale.fill_(2**9 / 4.5 / part.values.shape[1] ** 0.5)


class Probe:
    """Replaces the draw: returns a given code, and keeps the logits."""

    def __init__(self, code: Tensor) -> None:
        self.code, self.logits = code, list[Tensor]()

    def pick(self, logits: Tensor, uniform: Tensor, mask: Any = None, lookup: Any = None) -> Tensor:
        self.logits.append(logits.float().clone())
        if lookup is not None:
            lookup.fetch(self.code)
        return self.code


class Predictor:
    name = "predictor"

    def __init__(self, bits: int) -> None:
        config = DecoderStackConfig(2048, 1024, 3072, 5, 16, 8, 128, 1e-6, 1e6, 4096)
        with DEVICE:
            made = CodePredictor(config, 16, 2048)
        self.model = with_random_weights(made, bits)
        self.model.prepare()
        stack = self.model.model.as_frame_stack()
        assert stack is not None
        self.stack = stack
        self.big = torch.zeros(200_000_000, dtype=torch.bfloat16, device=DEVICE)
        self.read_ms = median_ms(self.big.amax)

    def _given(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The arguments of one pass: x, result, cache and head."""
        x, out = torch.randn(1, 1024, device=DEVICE).bfloat16(), torch.empty(1, 2048, device=DEVICE).bfloat16()
        cache = torch.zeros(5, 2, 1, 16, 8, 128, device=DEVICE).bfloat16()
        return x, out, cache, cast(nn.Linear, self.model.lm_head[0]).weight

    def refusal(self) -> str | None:
        x, _, cache, head = self._given()
        return frame_pass.refusal(self.stack, x[:, None], cache, head)

    def _logits(self, model: Any, dtype: torch.dtype) -> Tensor:
        draw = torch.Generator().manual_seed(1)
        hidden, first = (torch.randn(1, 2048, generator=draw).to(DEVICE, torch.bfloat16).to(dtype) for _ in range(2))
        probe = Probe(torch.tensor([7], device=DEVICE))
        model.generate(hidden, first, torch.zeros(1, 15, device=DEVICE), probe)
        return torch.stack(probe.logits)

    def exact(self) -> dict[str, Tensor]:
        model = deepcopy(self.model).float()
        model.prepare()
        with in_torch():
            return {"logits": self._logits(model, torch.float32)}

    def once(self, what: str) -> Tensor:
        return self._logits(self.model, torch.bfloat16)

    def clock(self) -> Tensor:
        x, out, cache, head = self._given()
        clock = torch.zeros(128, 5 * 5, 3, dtype=torch.int32, device=DEVICE)
        cos, sin = (t[:, 0] for t in self.model.model.rotations_at(range(9, 10), x.dtype))
        for _ in range(4):
            frame_pass.run(self.stack, x, cos, sin, cache, 9, head, out, clock)
        return clock

    def times(self) -> dict[str, float]:
        """ms of a frame without sampling, alone and after a read of 400 MB like the talker's."""
        hidden, first = (torch.randn(1, 2048, device=DEVICE).bfloat16() for _ in range(2))
        uniforms, code = torch.zeros(1, 15, device=DEVICE), torch.tensor([7], device=DEVICE)

        def frame() -> Tensor:
            return cast(Tensor, self.model.generate(hidden, first, uniforms, NoDraw(code)))

        after = median_ms(lambda: (self.big.amax(), frame())) - self.read_ms
        return {"alone": median_ms(frame), "after a talker": after}


class Talker:
    name = "talker"

    def __init__(self, bits: int) -> None:
        config = DecoderStackConfig(3072, 2048, 6144, 28, 16, 8, 128, 1e-6, 1e6, 8192)
        with DEVICE:
            made = DecoderStack(stack_shape(config))
        self.model = with_random_weights(made, bits)
        self.model.prepare(8192)
        stack = self.model.as_frame_stack()
        assert stack is not None
        self.stack, self.blocks = stack, 300
        self.cache = torch.randn(28, 2, self.blocks, 16, 8, 128, device=DEVICE, dtype=torch.bfloat16)
        self.x = torch.randn(1, 1, 2048, device=DEVICE, dtype=torch.bfloat16)
        self.tables = torch.randperm(self.blocks, device=DEVICE).int()[None]
        self.positions = {at: torch.tensor([[at]], dtype=torch.int32, device=DEVICE) for at in (0, *CONTEXTS)}

    def refusal(self) -> str | None:
        return paged_pass.refusal(self.stack, self.x, self.cache, self.tables, self.positions[0])

    def _step(self, model: Any, cache: Tensor, at: int) -> Tensor:
        position = self.positions[at]
        context = PagedContext(cache, self.tables, position, None, self.blocks)
        return cast(Tensor, model(self.x.to(cache.dtype).clone(), position, context))

    def exact(self) -> dict[str, Tensor]:
        model, cache = deepcopy(self.model).float(), self.cache.float()
        model.prepare(8192)
        with in_torch():
            return {str(at): self._step(model, cache, at) for at in self.positions}

    def once(self, what: str) -> Tensor:
        return self._step(self.model, self.cache, int(what))

    def clock(self) -> Tensor:
        """The clock of a pass at 1,000 positions."""
        clock, at = torch.zeros(128, 5 * 28, 3, dtype=torch.int32, device=DEVICE), self.positions[1000]
        cos, sin = self.model.rotations(at, self.x.dtype)
        for _ in range(4):
            paged_pass.run(self.stack, self.x, cos, sin, self.cache, self.tables, at, clock)
        return clock

    def times(self) -> dict[str, float]:
        return {f"{at} positions": median_ms(lambda at=at: self.once(str(at))) for at in CONTEXTS}
