"""Prefills of packed prompts: by CUDA graph where one fits, so that a listener's first sound does not wait for hundreds
of launches, and eagerly at their own size where none does.

A graph has a fixed number of prompts and of positions for each; what is spare goes to scratch memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import torch
from torch import Tensor

from sonant.device_copy import to_device
from sonant.engine.graphs import CapturedGraph, GraphPool, capture_graph
from sonant.models.base import PrefillItem, PrefillShape, SpeechModel

Bucket = tuple[int, int]  # prompts, positions of each

PREFILL_BUCKETS: tuple[Bucket, ...] = (
    (1, 32), (1, 64), (1, 128), (1, 256), (4, 32), (4, 64), (4, 128), (16, 16), (16, 32), (16, 48), (16, 64), (16, 128),
)  # fmt: skip
_WARM_POSITIONS = 8


class PrefillGraphs:
    name = "prefill"

    def __init__(self, model: SpeechModel, block_tokens: int, table_blocks: int, device: torch.device) -> None:
        self.model, self.block_tokens, self.table_blocks, self.device = model, block_tokens, table_blocks, device
        self.captured: dict[Bucket, CapturedGraph] = {}
        self.replays = True

    def capture(self, buckets: Iterable[Bucket], pool: GraphPool) -> None:
        for bucket in buckets:
            shape = self._shape(bucket)
            packed = to_device(self.model.pack([], shape), self.device)
            name = f"prefill of {shape.prompts} × {shape.positions}"
            self.captured[bucket] = capture_graph(name, partial(self._run, shape=shape), packed, pool)

    def compile(self) -> None:
        """Run an eager prefill into scratch memory, so that no listener waits for kernels to be compiled."""
        self._eager([], PrefillShape(1, _WARM_POSITIONS, 1))

    def __call__(self, items: Sequence[PrefillItem]) -> None:
        eager: list[PrefillItem] = []
        fitting: list[tuple[int, PrefillItem]] = []
        for item in items:
            need = self.model.packed_positions(item)
            if self.replays and self._bucket(1, need) is not None:
                fitting.append((need, item))
            else:
                eager.append(item)
        self._replay(sorted(fitting, key=lambda pair: pair[0]))
        if eager:
            positions = max(1, *map(self.model.packed_positions, eager))
            span_blocks = -(-max(i.end for i in eager) // self.block_tokens)
            self._eager(eager, PrefillShape(len(eager), positions, max(1, span_blocks)))

    def _replay(self, fitting: list[tuple[int, PrefillItem]]) -> None:
        most = max((count for count, _ in self.captured), default=1)
        while fitting:
            group = fitting[:most]
            bucket = self._bucket(len(group), group[-1][0])
            if bucket is None:  # there is none for so many as long as that: the shortest goes first, alone
                group = group[:1]
                bucket = self._bucket(1, group[0][0])
            assert bucket is not None
            self.captured[bucket].replay(self.model.pack([item for _, item in group], self._shape(bucket)))
            fitting = fitting[len(group) :]

    def _bucket(self, count: int, positions: int) -> Bucket | None:
        """The smallest that takes so many prompts of so many positions."""
        fits = (b for b in self.captured if b[0] >= count and b[1] >= positions)
        return min(fits, key=lambda b: b[0] * b[1], default=None)

    def _shape(self, bucket: Bucket) -> PrefillShape:
        return PrefillShape(*bucket, self.table_blocks)  # a graph must do for every length

    def _eager(self, items: Sequence[PrefillItem], shape: PrefillShape) -> None:
        self.model.prefill(to_device(self.model.pack(items, shape), self.device), shape)

    def _run(self, packed: Tensor, shape: PrefillShape) -> Tensor:
        self.model.prefill(packed, shape)
        return packed
