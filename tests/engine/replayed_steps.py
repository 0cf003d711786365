"""A stand-in for CUDA graphs on a machine without them: a replay runs the step again, from the same static inputs to
the same outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sonant.engine.graphs import CapturedGraph, Run


@dataclass(frozen=True)
class Replay:
    run: Run
    given: Tensor
    out: Tensor

    @torch.inference_mode()
    def replay(self) -> None:
        self.out.copy_(self.run(self.given))


def capture_graph(name: str, run: Run, given: Tensor, pool: Any, like: Tensor | None = None) -> CapturedGraph:
    out = run(given).clone()
    graph: Any = Replay(run, given, out)
    return CapturedGraph(graph, given, out)
