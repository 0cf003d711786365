"""CUDA graphs of the model's steps, one for each batch size: a replay costs the host one launch.

A step takes row indices and nothing else, so a graph needs one static input. Smaller batches are padded with the
scratch row. All graphs share one memory pool; their outputs stay referenced and so are never overlaid. On the CPU,
and for batches past the largest bucket, the same steps run as they are.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sonant.models.base import to_device

logger = logging.getLogger(__name__)

Run = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Captured:
    graph: torch.cuda.CUDAGraph
    rows: Tensor
    out: Tensor


class GraphedStep:
    """One kind of step at every bucket size. `run` takes rows [B] and returns [B, …]."""

    def __init__(self, name: str, run: Run, device: torch.device, scratch_row: int) -> None:
        self.name, self.run, self.device, self.scratch_row = name, run, device, scratch_row
        self.captured: dict[int, Captured] = {}

    def capture(self, buckets: Iterable[int], pool: Any) -> None:
        """Smallest first. The steps run for real while they are captured, on the scratch row only."""
        for bucket in buckets:
            start = time.perf_counter()
            rows = torch.full((bucket,), self.scratch_row, device=self.device)
            self.run(rows)  # compiles kernels and picks library algorithms, which a capture may not
            torch.cuda.synchronize(self.device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                out = self.run(rows)
            self.captured[bucket] = Captured(graph, rows, out)
            logger.debug("captured %s for %d rows in %.2f s", self.name, bucket, time.perf_counter() - start)

    def __call__(self, rows: Sequence[int]) -> Tensor:
        bucket = next((b for b in self.captured if b >= len(rows)), None)
        if bucket is None:
            return self.run(to_device(np.array(rows), self.device))
        step = self.captured[bucket]
        padded = np.full(bucket, self.scratch_row)
        padded[: len(rows)] = rows
        step.rows.copy_(to_device(padded, self.device))
        step.graph.replay()
        return step.out[: len(rows)]


def buckets_up_to(largest: int) -> list[int]:
    """1, 2, 4, 8, then steps of about a quarter, so that padding wastes little; the last is `largest`."""
    sizes = [1, 2, 4, 8]
    while sizes[-1] < largest:
        step = max(8, 1 << (sizes[-1].bit_length() - 2))
        sizes.append(sizes[-1] + step)
    return [s for s in sizes if s < largest] + [largest]
