"""Runs all steps that an engine will capture, without memory or launches, to learn which kernels they need.

A stage is one graph or, for the first, the eager prefills. Stages come in the order in which the engine captures them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from sonant.byte_size import parse_size
from sonant.config import EngineConfig
from sonant.engine.compile_ahead import CompileJob
from sonant.engine.runner import Runner
from sonant.engine.weight_paging import WeightPaging
from sonant.engine.weight_plan import plan_weights
from sonant.kernels.gpu import Gpu, planning_for
from sonant.kernels.recorded_launches import AnyForm, LaunchRecorder, launches_recorded
from sonant.models.registry import load_model
from sonant.models.weight_blocks import ModelWeights
from sonant.models.weights import HostMemory


class Rehearsal:
    def __init__(self, gpu: Gpu, make_stages: Callable[[], Sequence[Callable[[], object]]]) -> None:
        self.gpu = gpu
        self._found: list[AnyForm] = []
        self._recorder = LaunchRecorder(gpu, self._found.append)
        with planning_for(gpu), launches_recorded(self._recorder):
            self._stages = make_stages()

    @classmethod
    def of(cls, job: CompileJob) -> Rehearsal:
        memory = job.gpu_memory()
        return cls(Gpu(memory.name, memory.capability), lambda: runner_without_memory(job).graphs.rehearsal())

    def __len__(self) -> int:
        return len(self._stages)

    def run(self, stage: int) -> list[AnyForm]:
        """The kernels that this stage launches."""
        self._recorder.forget()
        with torch.inference_mode(), planning_for(self.gpu), launches_recorded(self._recorder):
            self._stages[stage]()
        found = [*self._found]
        self._found.clear()
        return found


def runner_without_memory(job: CompileJob) -> Runner:
    """The runner that an engine on the job's GPU will have, on the meta device."""
    dtypes = (getattr(torch, name) for name in (job.dtype, job.codec_dtype))
    config, memory, meta = job.engine_config(), job.gpu_memory(), torch.device("meta")
    model = load_model(Path(job.folder), config, meta, *dtypes)
    config = config.resolved(memory.room(model.spec))
    if config.kv_tokens is None:
        config = replace(config, kv_tokens=memory.likely_kv_tokens(model.spec, config))
    sizes = config.frame_sizes(model.spec.frame_s, model.spec.codec_lookahead)
    return Runner(model, config, sizes, meta, job.sound, paging=_paging(model.weights(), config))


def _paging(weights: ModelWeights, config: EngineConfig) -> WeightPaging | None:
    """By the budget in bytes, which the engine has worked out."""
    plan = None if config.gpu_weights is None else plan_weights(weights, parse_size(config.gpu_weights, "gpu_weights"))
    return None if plan is None else WeightPaging(weights, plan, HostMemory(plan.host_names, torch.device("meta")))
