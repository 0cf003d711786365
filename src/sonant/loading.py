"""From a checkpoint folder to a running engine."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

import torch

from sonant.bundled import bundled_voice
from sonant.byte_size import shown
from sonant.config import EngineConfig, Quantization
from sonant.engine.beginning import Beginning
from sonant.engine.compile_ahead import begin, begin_beside
from sonant.engine.compiler import Compiler
from sonant.engine.engine import Engine
from sonant.engine.residents import Residents
from sonant.engine.room import gpu_memory
from sonant.engine.seats import Seats
from sonant.engine.sleeper import Sleeper
from sonant.engine.start_note import StartNote
from sonant.engine.start_times import StartTimes
from sonant.engine.weight_budget import WeightBudget
from sonant.engine.weight_paging import WeightPaging
from sonant.errors import ConfigError
from sonant.kernels.gpu import Gpu, gpu_of
from sonant.models.registry import load_model, titles
from sonant.models.weights import HostMemory
from sonant.types import SoundFormat

logger = logging.getLogger(__name__)

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_POLL_S = 0.05
_FP8 = (8, 9)  # the least compute capability that has e4m3
_WEIGHT_SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".ckpt")


def load(
    path: str | Path | None = None,
    *,
    device: str = "auto",
    dtype: str = "auto",
    codec_dtype: str = "auto",
    quantize: Quantization | None = None,
    config: EngineConfig | None = None,
    sound: SoundFormat = "float32",
    seats: Seats | None = None,
) -> Engine:
    """Load a published checkpoint folder and start an engine on it. Without one: the built-in voice.

    device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1" …
    dtype, codec_dtype: "auto" (bfloat16 on a GPU, float32 on the CPU), "float32", "bfloat16", "float16"
    quantize: "fp8" halves the weights of the models' layers as they are read; None: as `config` says
    sound: "float32" in -1..1, or "int16", rounded on the device: half the bytes, and what most formats hold
    seats: places on the GPU that several engines take in turns; this one waits for its first, and sleeps without one
    """
    if sound not in get_args(SoundFormat):
        raise ConfigError(f"sound must be {' or '.join(get_args(SoundFormat))}, not {sound!r}")
    folder = bundled_voice() if path is None else Path(path)
    if folder is None:
        raise ConfigError(f"this build of sonant has no voice of its own: give the folder of a checkpoint ({titles()})")
    config = config or EngineConfig()
    if quantize is not None:
        config = replace(config, quantize=quantize)
    return load_engine(folder, device, (dtype, codec_dtype), config, sound, seats=seats)


def load_engine(
    folder: Path,
    device: str,
    dtype_names: tuple[str, str],
    config: EngineConfig,
    sound: SoundFormat,
    *,
    seats: Seats | None = None,
    compiler: Compiler | None = None,
    note: StartNote | None = None,
) -> Engine:
    """As `load`, for a folder that exists; `compiler`: a process that waits already; `note`: for the next start."""
    target = pick_device(device)
    check_quantize(config.quantize, gpu_of(target))
    dtypes = pick_dtype(dtype_names[0], target), pick_dtype(dtype_names[1], target)
    while seats is not None and not seats.take():
        time.sleep(_POLL_S)
    times, memory, begun, plan = StartTimes(), None, None, None
    if config.gpu_weights is not None:
        budget = WeightBudget.of(folder, config, target, dtypes)
        config, plan = budget.config, budget.plan
    if target.type == "cuda":
        weights = expected_weight_bytes(folder, config, dtypes) if plan is None else plan.device_bytes
        memory = gpu_memory(target, weights, config.gpu_share)
        gpu = gpu_of(target)
        assert gpu is not None
        begun = begin_beside(gpu, partial(begin, folder, config, dtypes, memory, sound, compiler, note))
        times.took("device")
    elif compiler is not None:
        compiler.dismiss()
    host = None if plan is None else HostMemory(plan.host_names, target)
    model = load_model(folder, config, target, *dtypes, host)
    paging = None if plan is None or host is None else WeightPaging(model.weights(), plan, host)
    sleeper = None
    if seats is not None:
        sleeper = Sleeper(Residents(model.weights(), target, [] if paging is None else paging.own_memory), seats)
    times.took("weights")
    kernels = None
    if begun is not None:
        kernels = begun.result()
        times.took("kernels")
    engine = Engine(model, config, target, sound, Beginning(times, memory, kernels, paging, sleeper))
    if config.quantize is not None:
        logger.info("weights: %s, layers in %s", shown(model.weights().total_bytes), config.quantize)
    if plan is not None:
        here, there = shown(plan.device_bytes), shown(plan.host_bytes)
        logger.info("weights: %s on the device, %s in host memory; %s", here, there, engine.weight_floor)
    return engine


def expected_weight_bytes(folder: Path, config: EngineConfig, dtypes: tuple[torch.dtype, torch.dtype]) -> int:
    """About how much the weights will take, before any is read. Quantised weights are smaller than their files, so
    the model is then laid out without memory, as the engine will have it."""
    if config.quantize is not None:
        return load_model(folder, config, torch.device("meta"), *dtypes).weights().total_bytes
    return weight_file_bytes(folder, config)


def weight_file_bytes(folder: Path, config: EngineConfig) -> int:
    roots = [folder, *([] if config.codec is None else [Path(config.codec).expanduser()])]
    files = {path for root in roots for path in (root, *root.rglob("*")) if path.suffix in _WEIGHT_SUFFIXES}
    return sum(path.stat().st_size for path in files if path.is_file())


def pick_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"no device {name!r}; use auto, cpu or cuda") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"Sonant runs on cpu and cuda, not on {device.type!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("no CUDA device is available; use --device cpu")
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return device


def check_quantize(quantize: Quantization | None, gpu: Gpu | None) -> None:
    """Raise `ConfigError` if the GPU lacks the type. A CPU widens what it reads, and so does a GPU that has the type
    but cannot multiply it."""
    if quantize is not None and gpu is not None and gpu.capability < _FP8:
        has, needs = (".".join(map(str, numbers)) for numbers in (gpu.capability, _FP8))
        raise ConfigError(
            f"--quantize {quantize} needs a GPU that has such numbers, of compute capability {needs} or newer (Ada, "
            f"Hopper), and {gpu.name} has {has}: leave it out"
        )


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in _DTYPES:
        raise ConfigError(f"no dtype {name!r}; use auto, {', '.join(_DTYPES)}")
    return _DTYPES[name]
