"""Every op at the shapes that the published models give it, with the bytes and operations it cannot avoid.

Shapes come from a family's workloads, for decode steps of some numbers of rows and for a prefill. Weights and KV cache,
which every step reads from memory, are made anew for each call of a case, so that a measurement can go through more of
them than a device's own cache holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from sonant.bench.kernels.by_index import ByIndex
from sonant.bench.kernels.case import Call, Case, CaseMaker
from sonant.bench.kernels.codec_cases import CodecCases
from sonant.bench.kernels.flow_cases import FlowCases
from sonant.bench.kernels.pass_cases import PassCases
from sonant.kernels.reference import (
    DelayPattern,
    FrameCounters,
    FrameMemory,
    FrameTables,
    Heads,
    LogitMask,
    Place,
    Ras,
    RowCounters,
    SamplingParams,
    Sides,
    Statuses,
    Weight,
    split_kinds,
)
from sonant.models.workload import StackWorkload, Workloads

_BLOCK_TOKENS = 16
_EPS = 1e-6
_RING = 32  # frames that wait for the codec
_RAS_ROWS = 7  # earlier rows that RAS looks at


class Cases(CaseMaker):
    def every(self, workloads: Workloads, rows: Sequence[int], prefill: int) -> Iterator[Case]:
        """The ops of decode steps of each number of `rows`, and of a prefill of `prefill` positions (0: none)."""
        flow = FlowCases(self.device, self.dtype, self.quantize)
        passes = PassCases(self.device, self.dtype, self.quantize)
        for stack in workloads.stacks:
            for count in (*rows, *([prefill] if prefill and not stack.per_frame else [])):
                yield from self._products(stack, count * stack.tokens)
                if stack.tokens > 1:
                    yield from flow.attention(stack, count, self._heads(stack, 1, stack.context))
                elif stack.per_frame:
                    yield self._frame_attention(stack, count)
                    if stack.draws:
                        yield passes.frame(stack, count, self._heads(stack, 1, 1))
                else:
                    yield from self._attention(stack, count, prefill=count == prefill and count not in rows)
                    if count in rows and stack.head_norms and not stack.dual:
                        yield passes.paged(stack, count, self._heads(stack, count, 1))
            if prefill and stack.dual:
                yield from self._dual(stack, prefill)
            for count in rows:
                if stack.draws:
                    yield from self._ras_sample(stack, count) if stack.codebooks > 1 else [self._sample(stack, count)]
                if stack.patch:
                    yield from flow.between(stack, *stack.patch, count)
                    yield flow.end(stack, *stack.patch, count)
                    yield flow.normals(count, workloads.uniforms)
        details = [s for s in workloads.stacks if s.per_frame and s.draws]
        for stack in (s for s in workloads.stacks if details and s.draws and not s.per_frame and s.codebooks == 1):
            yield from (self._frame_step(stack, details[0], count) for count in rows)
        codec = CodecCases(self.device, self.dtype, self.quantize)
        for count in rows:
            yield self._uniforms(count, workloads.uniforms)
            yield from codec.every(workloads.codec, count)

    def _products(self, s: StackWorkload, rows: int) -> Iterator[Case]:
        heads = s.heads * s.head_dim
        yield self._product("norm_linear", f"{s.name} qkv", rows, s.hidden, s.qkv)
        yield self._product("linear_add", f"{s.name} o", rows, heads, s.hidden)
        yield self._product("norm_gated", f"{s.name} gate, up", rows, s.hidden, s.inner)
        yield self._product("linear_add", f"{s.name} down", rows, s.inner, s.hidden)
        if s.draws:
            plain = Cases(self.device, self.dtype)  # heads are not quantised
            yield plain._product("linear", f"{s.name} head", rows, s.hidden, s.vocab)
        x, gain = self.normal(rows, 1, s.hidden), self.normal(s.hidden)
        moved = self.item * (2 * rows * s.hidden + s.hidden)
        yield Case("rms_norm", f"{s.name} norm", rows, lambda: Call((x, gain, _EPS), {}), 0, moved)

    def _product(self, op: str, where: str, rows: int, depth: int, columns: int) -> Case:
        planes = 2 if op == "norm_gated" else 1
        x, gain, residual = self.normal(rows, 1, depth), self.normal(depth), self.normal(rows, 1, columns)

        def make() -> Call:
            weight = self.weight(planes * columns, depth)
            args: dict[str, tuple[Any, ...]] = {
                "linear": (x, weight),
                "linear_add": (x, weight, residual.clone()),
                "norm_linear": (x, gain, _EPS, weight),
                "norm_gated": (x, gain, _EPS, weight),
            }
            return Call(args[op], {})

        weights = self.weight_bytes(planes * columns, depth)
        moved = weights + self.item * rows * (depth + columns * (2 if op == "linear_add" else 1))
        return Case(op, where, rows, make, weights, moved, flops=2 * rows * depth * planes * columns)

    def _dual(self, s: StackWorkload, rows: int) -> Iterator[Case]:
        """A prefill of half text and half audio, which reads both sides' weights."""
        audio = torch.arange(rows, device=self.device) >= (rows + 1) // 2
        split = split_kinds(audio.int()[None])
        by_index = ByIndex.of(split)
        x, inner = self.normal(1, rows, s.hidden), self.normal(1, rows, s.inner)
        gains = Sides(self.normal(s.hidden), self.normal(s.hidden))

        def norm_gated() -> Call:
            return Call((x, split, gains, _EPS, self._weights(2 * s.inner, s.hidden)), {})

        def linear_add() -> Call:
            return Call((inner, split, self._weights(s.hidden, s.inner), x.clone()), {})

        moved = self.item * (2 * rows * s.hidden + 2 * s.hidden)
        norm = partial(Call, (x, split, gains, _EPS), {})
        yield Case("dual_norm", f"{s.name} norm", rows, norm, 0, moved, usual=by_index.dual_norm)
        for op, where, make, usual, planes, values in (
            ("dual_norm_gated", "gate, up", norm_gated, by_index.dual_norm_gated, 2, s.hidden + s.inner),
            ("dual_linear_add", "down", linear_add, by_index.dual_linear_add, 1, 2 * s.hidden + s.inner),
        ):
            one_side = planes * s.inner * s.hidden
            weights = 2 * self.weight_bytes(planes * s.inner, s.hidden)
            moved = weights + self.item * rows * values
            yield Case(op, f"{s.name} {where}", rows, make, weights, moved, flops=2 * rows * one_side, usual=usual)

    def _weights(self, columns: int, depth: int) -> Sides[Weight]:
        return Sides(self.weight(columns, depth), self.weight(columns, depth))

    def _attention(self, s: StackWorkload, rows: int, *, prefill: bool) -> Iterator[Case]:
        """Decode: each row has its own context. Prefill: one row, whose positions see those before them."""
        batch, length = (1, rows) if prefill else (rows, 1)
        span = rows if prefill else s.context
        blocks = -(-span // _BLOCK_TOKENS)
        tables = torch.arange(batch * blocks, device=self.device, dtype=torch.int32).view(batch, blocks)
        last = torch.arange(rows, device=self.device) if prefill else torch.full((rows,), span - 1, device=self.device)
        positions = last.view(batch, length)
        slots = tables.long().gather(1, positions // _BLOCK_TOKENS) * _BLOCK_TOKENS + positions % _BLOCK_TOKENS
        q, qkv = self.normal(batch, length, s.heads, s.head_dim), self.normal(batch, length, s.qkv)
        heads = self._heads(s, batch, length)
        cache = partial(self.normal, 2, batch * blocks, _BLOCK_TOKENS, s.kv_heads, s.head_dim)

        def attend() -> Call:
            return Call((q, cache(), tables, positions, blocks), {})

        def rope() -> Call:
            return Call((qkv, heads, Place(cache(), slots.flatten())), {})

        kv_token = 2 * self.item * s.kv_heads * s.head_dim
        seen = rows * (rows + 1) // 2 if prefill else rows * span
        read = kv_token * batch * span
        queries = self.item * 2 * rows * s.heads * s.head_dim
        flops = 4 * seen * s.heads * s.head_dim
        yield Case("paged_attention", f"{s.name} {span} positions", rows, attend, read, read + queries, flops)
        moved = self.item * rows * (2 * s.qkv + 2 * s.head_dim)
        yield Case("qk_rope", f"{s.name} heads", rows, rope, 0, moved)
        if not prefill:

            def step() -> Call:
                return Call((qkv, heads, cache(), tables, positions, blocks), {})

            moved += read + queries // 2
            yield Case("paged_step", f"{s.name} {span} positions", rows, step, read, moved, flops)

    def _frame_attention(self, s: StackWorkload, rows: int) -> Case:
        """At the middle of a frame's codebooks. Their cache is small and was just written, so no step streams it."""
        at = s.context // 2
        qkv, heads = self.normal(rows, 1, s.qkv), self._heads(s, 1, 1)
        cache = self.normal(2, rows, s.context, s.kv_heads, s.head_dim)
        seen = 2 * self.item * rows * at * s.kv_heads * s.head_dim
        moved = seen + self.item * rows * (2 * s.qkv + s.heads * s.head_dim)
        flops = 4 * rows * (at + 1) * s.heads * s.head_dim
        make = partial(Call, (qkv, heads, cache, at), {})
        return Case("short_attention", f"{s.name} position {at}", rows, make, 0, moved, flops)

    def _heads(self, s: StackWorkload, batch: int, length: int) -> Heads:
        gain = self.normal(s.head_dim) if s.head_norms else None
        cos, sin = (self.normal(batch, length, 1, s.head_dim) for _ in range(2))
        return Heads(gain, gain, cos, sin, s.heads, s.kv_heads, _EPS)

    def _sample(self, s: StackWorkload, rows: int) -> Case:
        logits, uniform = self.normal(rows, s.vocab), torch.full((rows,), 0.5, device=self.device)
        params = self._params(rows)
        mask, moved = None, rows * s.vocab * self.item
        if not s.per_frame:  # only the first code is drawn with a mask
            seen = torch.zeros(rows, s.vocab, dtype=torch.bool, device=self.device)
            mask = LogitMask(seen, torch.full_like(uniform, 1.05), seen[0], 7, params.greedy)
            moved += rows * s.vocab
        return Case("sample", f"{s.name} code", rows, lambda: Call((logits, uniform, params, mask), {}), 0, moved)

    def _frame_step(self, s: StackWorkload, details: StackWorkload, rows: int) -> Case:
        """The end of a frame of `s`, which draws the first code; `details` draws the others, and has a position for
        each code."""
        groups, zeros = details.context, torch.zeros(rows, 3, dtype=torch.int32, device=self.device)
        codes = torch.randint(details.vocab, (rows, groups), device=self.device)
        offsets = details.vocab * torch.arange(groups, device=self.device)
        tables = FrameTables(self.normal(groups * details.vocab, s.hidden), offsets, self.normal(s.hidden))
        ring, text = zeros.new_zeros(rows, _RING, groups), self.normal(rows, _RING, s.hidden)
        memory = FrameMemory(ring, self.normal(rows, s.hidden), zeros.clone(), text)
        row, own = torch.arange(rows, device=self.device), FrameCounters(*zeros.unbind(1))
        make = partial(Call, (codes[:, 0], codes[:, 1:], zeros[:, 2].clone(), own, row, memory, tables, 1), {})
        moved = rows * (self.item * (groups + 2) * s.hidden + 16 * groups)
        return Case("frame_step", f"{s.name} {groups} codes", rows, make, 0, moved)

    def _ras_sample(self, s: StackWorkload, rows: int) -> Iterator[Case]:
        """Every code is drawn twice, as happens when all of them repeat; then the step that stores their row."""
        books, vocab = s.codebooks, s.vocab // s.codebooks
        logits, uniform = self.normal(rows, books, vocab), torch.full((rows, 2 * books), 0.5, device=self.device)
        recent = torch.zeros(rows, _RAS_ROWS, books, dtype=torch.int32, device=self.device)
        length = torch.full((rows,), _RAS_ROWS, dtype=torch.int32, device=self.device)
        ras = Ras(recent, length, torch.zeros_like(length), vocab)
        make = partial(Call, (logits, uniform, self._params(rows), ras), {})
        moved = rows * books * (vocab * self.item + 4 * _RAS_ROWS)
        yield Case("ras_sample", f"{s.name} {books} codes", rows, make, 0, moved)
        drawn, counted = torch.zeros(rows, books, dtype=torch.int64, device=self.device), recent[:, 0, :1].expand(-1, 5)
        ring, lines = recent.repeat(1, 2, 1), counted[:, :4].clone()
        pattern = DelayPattern(vocab - 2, vocab - 1, _RAS_ROWS - 1, Statuses(0, 1, 2, 3))
        own, row = RowCounters(*counted.unbind(1)), torch.arange(rows, device=self.device)
        step = partial(Call, (drawn, own, row, ring, lines, pattern), {})
        yield Case("delay_step", f"{s.name} row", rows, step, 0, rows * (12 * books + 4 * books + 48))

    def _params(self, rows: int) -> SamplingParams:
        ones = torch.ones(rows, device=self.device)
        return SamplingParams(greedy=ones < 0, temperature=0.9 * ones, top_k=(50 * ones).int(), top_p=ones)

    def _uniforms(self, rows: int, count: int) -> Case:
        seed = torch.ones(rows, 2, dtype=torch.int32, device=self.device)
        frame = torch.ones(rows, dtype=torch.int64, device=self.device)
        moved = rows * (16 + count * 4)
        return Case("uniforms", "a frame's draws", rows, lambda: Call((seed, frame, count), {}), 0, moved)
