"""A training step as one CUDA graph: with small models the host cannot launch kernels as fast as the GPU ends them.

The first calls of each kind run plainly, which is also what a graph needs before it can be captured: algorithms
chosen, kernels compiled, optimiser state made. The next one is captured, and from then on it is replayed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping

import torch
from torch import Tensor

_PLAIN_CALLS = 3

Tensors = Mapping[str, Tensor]


class Graphed:
    """`function(variant, inputs)` must read nothing on the host but `variant`, and leave its results on the device.

    All that touches the trained weights has to run on one stream that is not the default one: see `own_stream`.
    """

    def __init__(self, function: Callable[[Hashable, Tensors], dict[str, Tensor]], device: torch.device) -> None:
        self.function = function
        self.on = device.type == "cuda"
        self.calls: Counter[Hashable] = Counter()
        self.graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, dict[str, Tensor], dict[str, Tensor]]] = {}

    def __call__(self, variant: Hashable, inputs: Tensors) -> dict[str, Tensor]:
        """What comes back is overwritten by the next call of the same kind."""
        key = (variant, *(t.shape for t in inputs.values()))
        if not self.on or self.calls[key] < _PLAIN_CALLS:
            self.calls[key] += 1
            return self.function(variant, inputs)
        if key not in self.graphs:
            held = {name: t.clone() for name, t in inputs.items()}
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
                results = self.function(variant, held)
            self.graphs[key] = graph, held, results
        graph, held, results = self.graphs[key]
        for name, value in inputs.items():
            held[name].copy_(value)
        graph.replay()
        return results

    def give_up(self) -> None:
        """Run plainly from now on."""
        self.graphs.clear()
        self.on = False


def own_stream(device: torch.device) -> None:
    """Make a fresh stream the current one: gradients remember the stream of their first use, and a capture cannot
    reach into the default one."""
    if device.type == "cuda":
        torch.cuda.set_stream(torch.cuda.Stream(device))
