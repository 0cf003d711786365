"""The ops of a guided flow: layers over a few positions, and what runs between two evaluations of the estimator."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from sonant.bench.kernels.case import Call, Case, CaseMaker
from sonant.kernels.reference import (
    FlowEnds,
    FlowGiven,
    Heads,
    LocalWeights,
    PatchCounters,
    PatchMemory,
    PatchStatuses,
)
from sonant.layers.local_stack import FEW_TOKENS
from sonant.models.workload import StackWorkload

_EPS = 1e-6
_PREFIX = 2
_RING = 8  # patches that a row keeps
_LENGTH = 0.1  # of an integration step
_LAYERS = 4


class FlowCases(CaseMaker):
    def attention(self, s: StackWorkload, rows: int, heads: Heads) -> Iterator[Case]:
        """Attention within sequences as long as the context, of which a row may have several. All that it reads has
        just been written, except the projection's weights."""
        batch = rows * s.tokens // s.context
        qkv, residual = self.normal(batch, s.context, s.qkv), self.normal(batch, s.context, s.hidden)
        width = s.heads * s.head_dim
        moved = self.item * (qkv.numel() + batch * s.context * width)
        flops = 4 * batch * s.context**2 * width
        where = f"{s.name} {s.context} positions"
        yield Case("local_attention", where, rows, partial(Call, (qkv, heads), {}), 0, moved, flops)

        def make() -> Call:
            return Call((qkv, heads, self.weight(s.hidden, width), residual.clone()), {})

        weights = self.weight_bytes(s.hidden, width)
        moved = weights + self.item * (qkv.numel() + 2 * residual.numel())
        flops += 2 * batch * s.context * s.hidden * width
        yield Case("local_attention_add", where, rows, make, weights, moved, flops)
        if batch * s.context <= FEW_TOKENS:
            yield self._stack(s, rows, residual, heads)
        yield from self._between_products(s, rows, batch * s.context)

    def _stack(self, s: StackWorkload, rows: int, x: Tensor, heads: Heads) -> Case:
        """Several layers of the stack, so that its beginning and end count for little."""
        width, tokens = s.heads * s.head_dim, x.shape[0] * x.shape[1]

        def layer() -> LocalWeights:
            return LocalWeights(
                self.normal(s.hidden), self.normal(s.qkv, s.hidden) * s.hidden**-0.5, heads,
                self.normal(s.hidden, width) * width**-0.5, self.normal(s.hidden),
                self.normal(2 * s.inner, s.hidden) * s.hidden**-0.5, self.normal(s.hidden, s.inner) * s.inner**-0.5,
            )  # fmt: skip

        def make() -> Call:
            return Call((x.clone(), [layer() for _ in range(_LAYERS)]), {})

        values = s.hidden * (s.qkv + width + 3 * s.inner)
        weights = _LAYERS * self.item * values
        flops = _LAYERS * (2 * tokens * values + 4 * tokens * s.context * width)
        moved = weights + 2 * self.item * x.numel()
        return Case("local_stack", f"{s.name} {_LAYERS} layers", rows, make, weights, moved, flops)

    def _between_products(self, s: StackWorkload, rows: int, tokens: int) -> Iterator[Case]:
        """With many tokens the products are the library's: these are the kernels between them."""
        x, branch, gain = self.normal(tokens, 1, s.hidden), self.normal(tokens, 1, s.hidden), self.normal(s.hidden)
        moved = self.item * (4 * x.numel() + s.hidden)
        make = partial(Call, (x, branch, gain, _EPS), {})
        yield Case("add_norm", f"{s.name} sum, norm", rows, make, 0, moved)
        gate_up = self.normal(tokens, 1, 2 * s.inner)
        make = partial(Call, (gate_up,), {})
        yield Case("swiglu", f"{s.name} gate", rows, make, 0, self.item * 3 * gate_up.numel() // 2)

    def between(self, s: StackWorkload, steps: int, channels: int, rows: int) -> Iterator[Case]:
        """Patches are float32 whatever the model's dtype is."""
        x = torch.randn(rows, steps, channels, device=self.device)
        guidance = torch.full((rows,), 2.0, device=self.device)
        given = FlowGiven(self.normal(rows, _PREFIX, s.hidden), self.normal(rows, steps, s.hidden), guidance)
        hidden, time = self.normal(2 * rows, _PREFIX + 1 + 2 * steps, s.hidden), self.normal(s.hidden)
        projection = self.item * channels * s.hidden
        patch, tokens = 4 * x.numel(), self.item * hidden.numel()
        told, last = self.item * (given.prefix.numel() + given.past.numel()), 2 * self.item * rows * steps * s.hidden
        product = 2 * rows * steps * channels * s.hidden
        where = f"{s.name} {steps} × {channels}"

        def case(op: str, args: tuple[object, ...], weights: int, moved: int, flops: int) -> Case:
            def make() -> Call:
                return Call((*args, given, self._ends(s.hidden, channels)), {})

            return Case(op, where, rows, make, weights, weights + moved, flops)

        opened, turned = patch + told + tokens, last + 2 * patch
        yield case("flow_open", (x, time), projection, opened, product)
        yield case("flow_move", (x, hidden, _LENGTH), projection, turned, 2 * product)
        both = turned + told + tokens
        yield case("flow_turn", (x, hidden, _LENGTH, time), 2 * projection, both, 3 * product)

    def end(self, s: StackWorkload, steps: int, channels: int, rows: int) -> Case:
        """The end of a step, which stores a patch, with as many rows in memory as in the batch."""
        patch, embedded = torch.randn(rows, steps, channels, device=self.device), self.normal(rows, s.hidden)
        lines = torch.zeros(rows, 5, dtype=torch.int32, device=self.device)
        ring = patch[:, None].repeat(1, _RING, 1, 1)
        memory = PatchMemory(ring, patch.clone(), embedded.clone(), torch.zeros_like(lines)[:, :4])
        row, own = torch.arange(rows, device=self.device), PatchCounters(*lines.unbind(1))
        stop = self.normal(rows, 2)
        make = partial(Call, (patch, embedded, stop, own, row, memory, PatchStatuses(0, 2, 3)), {})
        moved = 4 * 4 * patch.numel() + 2 * self.item * embedded.numel() + rows * 48
        return Case("patch_step", f"{s.name} {steps} × {channels}", rows, make, 0, moved)

    def normals(self, rows: int, count: int) -> Case:
        seed = torch.ones(rows, 2, dtype=torch.int32, device=self.device)
        frame = torch.ones(rows, dtype=torch.int64, device=self.device)
        make = partial(Call, (seed, frame, torch.ones(rows, device=self.device), count), {})
        return Case("normals", "a patch's noise", rows, make, 0, rows * (20 + count * 4))

    def _ends(self, width: int, channels: int) -> FlowEnds:
        return FlowEnds(
            self.normal(width, channels), self.normal(width), self.normal(width), _EPS,
            self.normal(channels, width) * width**-0.5, self.normal(channels),
        )  # fmt: skip
