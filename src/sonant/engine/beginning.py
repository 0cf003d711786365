"""What an engine is given at its start beside its model: what was there before the weights were."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sonant.engine.compile_ahead import CompileAhead
from sonant.engine.room import GpuMemory, gpu_memory
from sonant.engine.sleeper import Sleeper
from sonant.engine.start_times import StartTimes
from sonant.engine.weight_paging import WeightPaging


@dataclass(frozen=True)
class Beginning:
    times: StartTimes
    memory: GpuMemory | None  # of the GPU, where there is one
    kernels: CompileAhead | None = None  # on their way
    paging: WeightPaging | None = None  # None: all weights stay on the device
    sleeper: Sleeper | None = None  # None: it never sleeps

    @classmethod
    def with_weights(cls, device: torch.device) -> Beginning:
        """Where the model is there already, and nobody thought of it before."""
        return cls(StartTimes(), gpu_memory(device) if device.type == "cuda" else None)
