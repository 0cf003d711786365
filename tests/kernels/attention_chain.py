"""A made-up decoder's steps as an engine runs them: in one CUDA graph, by kernels that start early.

The cache is full of NaN at first. The result shows it if a kernel reads a position before it was written, another
launch's sums or another engine's counters; a kernel called between two of torch's own never would.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.paged_cases import exact_attention
from sonant.kernels import ops, reference
from sonant.kernels.reference import Heads, Place

_HIDDEN, _HEADS, _KV_HEADS, _DIM, _BLOCK, _LAYERS, _CAPACITY, _EPS = 1024, 16, 8, 128, 16, 4, 2048, 1e-6


def exact_step(qkv: Tensor, heads: Heads, cache: Tensor, tables: Tensor, positions: Tensor, span: int) -> Tensor:
    """A step by the reference, with sums in float32. Its span depends on the positions, so no graph can capture it."""
    block, most = cache.shape[2], int(positions.max())
    blocks = tables.gather(1, positions.long() // block).long()
    q, _, _ = reference.qk_rope(qkv, heads, Place(cache, (blocks * block + positions % block).flatten()))
    return exact_attention(q, cache, tables, positions, most // block + 1)


class Chain:
    """Rows that are all at the same position. Every frame has an input of its own, so that errors do not grow."""

    def __init__(self, rows: int, frames: int, seed: int, step: Callable[..., Tensor], graphs: bool = True) -> None:
        generator = torch.Generator("cuda").manual_seed(seed)

        def values(*sizes: int, scale: float = 1.0) -> Tensor:
            return (scale * torch.randn(sizes, generator=generator, device="cuda")).bfloat16()

        width = (_HEADS + 2 * _KV_HEADS) * _DIM
        self.inputs = values(frames, rows, 1, _HIDDEN)
        self.weights = [
            (values(width, _HIDDEN, scale=_HIDDEN**-0.5), values(_HIDDEN, _HEADS * _DIM, scale=0.02))
            for _ in range(_LAYERS)
        ]
        self.gain, self.head_gain = values(_HIDDEN), values(_DIM)
        self.turns = values(2, frames, 1, 1, _DIM)
        blocks = _CAPACITY // _BLOCK
        order = torch.randperm(rows * blocks, generator=generator, device="cuda")
        self.tables = order.view(rows, blocks).int()
        sizes = (_LAYERS, 2, rows * blocks, _BLOCK, _KV_HEADS, _DIM)
        with torch.inference_mode(False):  # as in an engine: a layer's view then knows its base, which keeps counters
            self.cache = torch.full(sizes, torch.nan, dtype=torch.bfloat16, device="cuda")
        self.frame = torch.zeros(1, dtype=torch.int64, device="cuda")
        self.out = torch.zeros(frames, rows, 1, _HIDDEN, dtype=torch.bfloat16, device="cuda")
        self.step = step
        self._replay = self._captured() if graphs else self._run

    def _run(self) -> None:
        rows = self.inputs.shape[1]
        x = self.inputs.index_select(0, self.frame)[0].clone()
        positions = self.frame.expand(rows, 1).int()
        cos, sin = (turn.index_select(0, self.frame) for turn in self.turns)
        heads = Heads(self.head_gain, self.head_gain, cos, sin, _HEADS, _KV_HEADS, _EPS)
        for layer, (into, back) in enumerate(self.weights):
            qkv = ops.norm_linear(x, self.gain, _EPS, into)
            mixed = self.step(qkv, heads, self.cache[layer], self.tables, positions, self.tables.shape[1])
            x = ops.linear_add(mixed.flatten(2), back, x)
        self.out.index_copy_(0, self.frame, x[None])
        self.frame += 1

    def _captured(self) -> Callable[[], None]:
        self._run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._run()
        self.frame.zero_()
        self.cache.fill_(torch.nan)
        return graph.replay

    def play(self, frames: int) -> None:
        for _ in range(frames):
            self._replay()
