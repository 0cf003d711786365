"""Passes over all layers of a stack at once, which for one row can be one kernel."""

from __future__ import annotations

import torch

from sonant.bench.kernels.case import Call, Case, CaseMaker
from sonant.kernels.reference import FrameLayer, FrameStack, Heads, QuantizedWeight, Weight
from sonant.models.workload import StackWorkload

_EPS = 1e-6
_LAYERS = 4  # enough that a pass's beginning and end count for little
_BLOCK_TOKENS = 16


class PassCases(CaseMaker):
    def frame(self, s: StackWorkload, rows: int, heads: Heads) -> Case:
        """A pass at the middle of a frame's codebooks, with the head."""
        at, x = s.context // 2, self.normal(rows, 1, s.hidden)
        cache = self.normal(_LAYERS, 2, rows, s.context, s.kv_heads, s.head_dim)

        def make() -> Call:
            head = self.normal(s.vocab, s.hidden) * s.hidden**-0.5
            return Call((self._stack(s), x, heads.cos, heads.sin, cache, at, head), {})

        weights = self._weights(s) + self.item * s.vocab * s.hidden
        moved = weights + self.item * rows * (s.hidden + s.vocab) + 2 * at * cache[:, 0, :, 0].nbytes
        flops = 2 * rows * (_LAYERS * self._values(s) + s.vocab * s.hidden)
        return Case("frame_pass", f"{s.name} {_LAYERS} layers", rows, make, weights, moved, flops)

    def paged(self, s: StackWorkload, rows: int, heads: Heads) -> Case:
        """A pass with every row at the end of its context."""
        blocks, x = -(-s.context // _BLOCK_TOKENS), self.normal(rows, 1, s.hidden)
        tables = torch.arange(rows * blocks, device=self.device, dtype=torch.int32).view(rows, blocks)
        positions = torch.full((rows, 1), s.context - 1, dtype=torch.int32, device=self.device)

        def make() -> Call:
            with torch.inference_mode(False):  # as an engine's: views then know their base, and use its counters
                cache = self.normal(_LAYERS, 2, rows * blocks, _BLOCK_TOKENS, s.kv_heads, s.head_dim)
            return Call((self._stack(s), x.clone(), heads.cos, heads.sin, cache, tables, positions, blocks), {})

        read = self._weights(s) + _LAYERS * 2 * self.item * rows * s.context * s.kv_heads * s.head_dim
        flops = _LAYERS * rows * (2 * self._values(s) + 4 * s.context * s.heads * s.head_dim)
        moved = read + 2 * self.item * x.numel()
        return Case("paged_pass", f"{s.name} {_LAYERS} layers", rows, make, read, moved, flops)

    def _stack(self, s: StackWorkload) -> FrameStack:
        """Each layer has memory of its own, but with the same values, since drawing them takes long."""
        width, gain, head_gain = s.heads * s.head_dim, self.normal(s.hidden), self.normal(s.head_dim)
        qkv, out = self.weight(s.qkv, s.hidden), self.weight(s.hidden, width)
        gate_up, down = self.weight(2 * s.inner, s.hidden), self.weight(s.hidden, s.inner)

        def layer() -> FrameLayer:
            weights = [_copied(weight) for weight in (qkv, out, gate_up, down)]
            return FrameLayer(gain, weights[0], head_gain, head_gain, weights[1], gain, weights[2], weights[3])

        return FrameStack(tuple(layer() for _ in range(_LAYERS)), gain.clone(), s.heads, s.kv_heads, _EPS)

    def _weights(self, s: StackWorkload) -> int:
        width = s.heads * s.head_dim
        shapes = (s.qkv, s.hidden), (s.hidden, width), (2 * s.inner, s.hidden), (s.hidden, s.inner)
        return _LAYERS * sum(self.weight_bytes(*shape) for shape in shapes)

    @staticmethod
    def _values(s: StackWorkload) -> int:
        """How many values a layer's weights have."""
        return s.hidden * (s.qkv + s.heads * s.head_dim + 3 * s.inner)


def _copied(part: Weight) -> Weight:
    if isinstance(part, QuantizedWeight):
        return QuantizedWeight(part.values.clone(), part.scale.clone())
    return part.clone()
