"""Pieces of a step that do not depend on each other, side by side on the GPU.

Each runs on a stream of its own, and so does its gradient; captured, they are branches of one graph. Kernels of small
nets fill a fraction of a large GPU, so several at once cost little more than one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

T = TypeVar("T")


class Branches:
    def __init__(self, device: torch.device, count: int) -> None:
        self.streams = [torch.cuda.Stream(device) for _ in range(count)] if device.type == "cuda" else []

    def run(self, pieces: Sequence[Callable[[], T]]) -> list[T]:
        """Return what each piece returns, in order. On a CPU, and beyond the last stream, they run one by one."""
        if not self.streams:
            return [piece() for piece in pieces]
        here, results = torch.cuda.current_stream(), []
        for stream in self.streams:
            stream.wait_stream(here)
        for i, piece in enumerate(pieces):
            with torch.cuda.stream(self.streams[i % len(self.streams)]):
                results.append(piece())
        for stream in self.streams:
            here.wait_stream(stream)
        return results
