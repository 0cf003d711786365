"""Compares the kernels that are planned without memory with those that an engine's steps launch: run by
test_compile_ahead.py.

It is a process of its own, since the tests' process has Triton's interpreter, and does without torch's compiler, as the
compiling process does. Both sides run on a machine without a GPU, as if for an H200: one on the meta device, as in the
compiling process, the other on real tensors, as in the engine, with captures and requests; with --paged for an engine
whose weights are paged, with --fp8 for one whose weights have eight bits. Launches write nothing, so torch.empty is
patched to give zeros.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from replayed_steps import capture_graph
from torch import Tensor

from sonant.config import EngineConfig
from sonant.engine import graphs
from sonant.engine.beginning import Beginning
from sonant.engine.compile_ahead import CompileJob
from sonant.engine.compile_process import do_without_torchs_compiler
from sonant.engine.engine import Engine
from sonant.engine.graph_warmup import GraphWarmup
from sonant.engine.rehearsal import Rehearsal
from sonant.engine.room import GpuMemory
from sonant.engine.start_times import StartTimes
from sonant.engine.step_graphs import StepGraphs
from sonant.engine.weight_budget import WeightBudget
from sonant.engine.weight_paging import WeightPaging
from sonant.engine.weight_plan import fixed_bytes, least_bytes, planned_blocks
from sonant.kernels import dispatch, host_weights, ops, tuning
from sonant.kernels.gpu import Gpu
from sonant.kernels.recorded_launches import KernelForm, LaunchRecorder, launches_recorded
from sonant.kernels.triton import pdl, scaled_product, snake
from sonant.models.base import SpeechModel
from sonant.models.qwen3_tts import load
from sonant.models.registry import load_model
from sonant.models.weights import HostMemory
from sonant.types import SoundFormat

GPU = Gpu("NVIDIA H200", (9, 0))
MEMORY = GpuMemory(GPU.name, GPU.capability, 132, 141 << 30, 100 << 30)
STEPS, MOST_S = 12, 20.0
SOUND: SoundFormat = "int16"  # as in a server: it takes one kernel more
# `codec_batch_s` is a GPU's default, since an engine that only pretends to have a GPU would take a CPU's
CONFIG = EngineConfig(max_rows=16, kv_tokens=4096, chunk_s=(0.16, 0.64), codec_batch_s=81.92, steps_ahead=0)


Kernel = tuple[str, str]


def config_for(folder: Path, paged: bool, fp8: bool) -> EngineConfig:
    config = replace(CONFIG, quantize="fp8" if fp8 else None)
    if not paged:
        return config
    weights = load_model(folder, config, torch.device("meta"), torch.bfloat16, torch.bfloat16).weights()
    return replace(config, gpu_weights=str(least_bytes(planned_blocks(weights), fixed_bytes(weights))))


def planned(folder: Path, config: EngineConfig) -> tuple[int, set[Kernel]]:
    job = CompileJob(str(folder), vars(config), "bfloat16", "bfloat16", vars(MEMORY), 1, "", SOUND)
    rehearsal = Rehearsal.of(job)
    forms = [form for stage in range(len(rehearsal)) for form in rehearsal.run(stage)]
    return len(rehearsal), {(form.name, form.key) for form in forms}


def zeroed(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def made(*args: Any, **options: Any) -> Tensor:
        tensor = make(*args, **options)
        return tensor if tensor.is_meta else tensor.zero_()

    return made


def scaled_mm(values: Tensor, weight: Tensor, *_: Any, out_dtype: torch.dtype, **__: Any) -> Tensor:
    """A stand-in for the library's product, since a CPU's differs."""
    return torch.zeros(len(values), weight.shape[1], dtype=out_dtype, device=values.device)


def load_paged(folder: Path, config: EngineConfig) -> tuple[SpeechModel, WeightPaging | None]:
    cpu, dtypes = torch.device("cpu"), (torch.bfloat16, torch.bfloat16)
    plan = WeightBudget.of(folder, config, cpu, dtypes).plan
    if plan is None:
        return load_model(folder, config, cpu, *dtypes), None
    host = HostMemory(plan.host_names, cpu)
    model = load_model(folder, config, cpu, *dtypes, host)
    return model, WeightPaging(model.weights(), plan, host)


def asked_for(folder: Path, config: EngineConfig) -> tuple[set[Kernel], set[Kernel]]:
    """The kernels launched by the start of an engine, and those launched only by requests."""
    noted = set[Kernel]()

    def note(form: KernelForm) -> None:
        noted.add((form.name, form.key))

    with (
        mock.patch.object(torch, "empty", zeroed(torch.empty)),
        mock.patch.object(torch, "empty_like", zeroed(torch.empty_like)),
        mock.patch.object(Tensor, "new_empty", zeroed(Tensor.new_empty)),
        mock.patch.object(graphs, "capture_graph", capture_graph),
        mock.patch.object(StepGraphs, "_warmup", lambda self: GraphWarmup(self.wanted(), None)),
        mock.patch.object(ops, "gpu_of", lambda device: GPU),  # patched, so that it holds in all threads
        mock.patch.object(dispatch, "gpu_of", lambda device: GPU),
        mock.patch.object(pdl, "gpu_of", lambda device: GPU),
        mock.patch.object(host_weights, "gpu_of", lambda device: GPU),
        mock.patch.object(tuning, "gpu_of", lambda device: GPU),
        mock.patch.object(scaled_product, "gpu_of", lambda device: GPU),
        mock.patch.object(snake, "gpu_of", lambda device: GPU),
        mock.patch.object(load, "gpu_of", lambda device: GPU),
        mock.patch.object(torch, "_scaled_mm", scaled_mm),
        launches_recorded(LaunchRecorder(GPU, note)),
    ):
        model, paging = load_paged(folder, config)
        beginning = Beginning(StartTimes(), MEMORY, paging=paging)
        with Engine(model, config, torch.device("cpu"), SOUND, beginning) as engine:
            with torch.inference_mode():
                engine.loop.runner.prefill.compile()
            started = {*noted}
            speak_for_a_while(engine)
    return started, noted - started


def speak_for_a_while(engine: Engine) -> None:
    """Speak for some steps, but not to the end: some families would learn of it from a kernel, and none runs."""
    voice = None
    if engine.spec.clones:
        clip: Any = np.random.default_rng(0).standard_normal(engine.sample_rate).astype(np.float32)
        voice = engine.clone((clip, engine.sample_rate), "Some words.")
    streams = [engine.stream("hello the world " * n, voice=voice, seed=n, max_frames=20) for n in (1, 4, 12)]
    deadline_s = time.monotonic() + MOST_S
    while not engine.loop.steps and time.monotonic() < deadline_s:
        time.sleep(0.02)
    while engine.loop.steps < STEPS and time.monotonic() < deadline_s and engine.stats().running:
        time.sleep(0.02)
    for stream in streams:
        stream.abort()


def compare(folder: Path, paged: bool, fp8: bool) -> dict[str, Any]:
    config = config_for(folder, paged, fp8)
    stages, known = planned(folder, config)
    started, later = asked_for(folder, config)
    return {
        "stages": stages,
        "planned": len(known),
        "asked": len(started),
        "names": sorted({name for name, _ in known}),
        "missing": sorted(started - known),
        "later": sorted(later - known),
        "needless": sorted(known - started),
    }


if __name__ == "__main__":
    do_without_torchs_compiler()
    folders = [Path(folder) for folder in sys.argv[1:] if not folder.startswith("--")]
    print(json.dumps([compare(folder, "--paged" in sys.argv, "--fp8" in sys.argv) for folder in folders]))
