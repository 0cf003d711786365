"""Short prompts by CUDA graph: a listener's first sound does not wait for hundreds of launches.

A graph has a fixed number of prompts and of positions for each; what is spare goes to scratch memory. Longer prompts,
and those that are prefilled in several pieces up to their last one, are left to the model as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import torch
from torch import Tensor

from sonant.engine.graphs import Captured, GraphPool, capture_graph
from sonant.models.base import PrefillItem, SpeechModel, to_device

Shape = tuple[int, int]  # prompts, positions of each

PREFILL_SHAPES: tuple[Shape, ...] = (
    (1, 32), (1, 64), (1, 128), (1, 256), (4, 32), (4, 64), (4, 128), (16, 16), (16, 32), (16, 48), (16, 64), (16, 128),
)  # fmt: skip


class GraphedPrefill:
    name = "prefill"

    def __init__(self, model: SpeechModel, device: torch.device) -> None:
        self.model, self.device = model, device
        self.captured: dict[Shape, Captured] = {}
        self.replays = True

    def capture(self, buckets: Iterable[Shape], pool: GraphPool) -> None:
        for count, positions in buckets:
            lines = to_device(self.model.pack_lines([], count, positions), self.device)
            run = partial(self._run, positions=positions)
            self.captured[count, positions] = capture_graph(f"prefill of {count} × {positions}", run, lines, pool)

    def __call__(self, items: Sequence[PrefillItem]) -> list[PrefillItem]:
        """Replay what fits; → the others."""
        left: list[PrefillItem] = []
        fitting: list[tuple[int, PrefillItem]] = []
        for item in items:
            need = self.model.line_positions(item) if item.last and self.replays else None
            if need is None or self._shape(1, need) is None:
                left.append(item)
            else:
                fitting.append((need, item))
        self._replay(sorted(fitting, key=lambda pair: pair[0]))
        return left

    def _replay(self, fitting: list[tuple[int, PrefillItem]]) -> None:
        most = max((count for count, _ in self.captured), default=1)
        while fitting:
            group = fitting[:most]
            shape = self._shape(len(group), group[-1][0])
            if shape is None:  # there is none for so many as long as that: the shortest goes first, alone
                group = group[:1]
                shape = self._shape(1, group[0][0])
            assert shape is not None
            self.captured[shape].replay(self.model.pack_lines([item for _, item in group], *shape))
            fitting = fitting[len(group) :]

    def _shape(self, count: int, positions: int) -> Shape | None:
        """The smallest that takes so many prompts of so many positions."""
        fits = (s for s in self.captured if s[0] >= count and s[1] >= positions)
        return min(fits, key=lambda s: s[0] * s[1], default=None)

    def _run(self, lines: Tensor, positions: int) -> Tensor:
        self.model.prefill_lines(lines, positions)
        return lines
