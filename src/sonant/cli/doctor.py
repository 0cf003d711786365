"""`sonant doctor`: what Sonant will run on here, and whether a model would load, without loading it."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from sonant.cli import machine
from sonant.cli.machine import Kernel, Machine
from sonant.cli.model_folder import given_codec, given_folder, given_once
from sonant.cli.options import add_codec, add_gpu_weights, add_json, add_kv_cache_dtype, add_model, add_quantize
from sonant.cli.serving_facts import ServingFacts, serving_facts, serving_rows
from sonant.config import EngineConfig
from sonant.engine.kv_cache import block_count, check_type
from sonant.engine.room import GpuMemory, gpu_memory, row_bytes
from sonant.engine.weight_budget import WeightBudget
from sonant.engine.weight_floor import expected_floor
from sonant.engine.weight_plan import WeightPlan
from sonant.errors import ConfigError, SonantError
from sonant.kernels.gpu import gpu_of
from sonant.loading import check_quantize, pick_device, pick_dtype
from sonant.models.registry import check_model
from sonant.models.spec import ModelSpec

EXAMPLES = """
sonant doctor
sonant doctor --model model
sonant doctor model --gpu-weights 3GiB
sonant doctor model --quantize fp8
sonant doctor --json
"""


@dataclass(frozen=True)
class Chosen:
    """What an engine chooses for the machine by default, and why."""

    max_rows: int
    max_batch: int
    kv_tokens: int
    reason: str


@dataclass(frozen=True)
class PagedWeights:
    """What `--gpu-weights` means for a model: where its weights lie, what paging takes, and how many can listen."""

    device_bytes: int
    host_bytes: int
    step_bytes: int  # of weights that come over the bus for each frame
    bus_bytes_per_s: float
    floor_s: float
    listeners: int
    told: str


@dataclass(frozen=True)
class ModelCheck:
    """What a model needs on the device that `auto` picks, or why it cannot be loaded."""

    folder: str
    error: str | None = None
    weight_bytes: int = 0
    row_bytes: int = 0  # for each request that speaks at once
    kv_token_bytes: int = 0  # for each position of prompt or speech in the cache
    kv_dtype: str = ""
    needed_bytes: int = 0  # weights, all rows of the default config, and one request of full length
    free_bytes: int | None = None
    chosen: Chosen | None = None
    weights: PagedWeights | None = None  # None: all of them stay on the device
    quantize: str | None = None  # the type that the layers' weights are converted to


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="MODEL", nargs="?", help="the same as --model")
    add_model(parser, has_default=False)
    add_codec(parser)
    add_gpu_weights(parser)
    add_kv_cache_dtype(parser)
    add_quantize(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    here = machine.this_machine()
    device = pick_device("auto")
    dtype = str(pick_dtype("auto", device)).removeprefix("torch.")
    auto = {"device": str(device), "dtype": dtype, "codec_dtype": dtype}
    folder = given_folder(given_once(args.folder, args.model))
    about_models = {
        "gpu_weights": args.gpu_weights,
        "kv_cache_dtype": args.kv_cache_dtype,
        "quantize": args.quantize,
    }
    for name, value in about_models.items():
        if folder is None and value is not None:
            raise ConfigError(f"--{name.replace('_', '-')} needs a model: give MODEL or --model")
    config = EngineConfig(codec=given_codec(args.codec), **about_models)
    check = None if folder is None else check_folder(folder, here, device, config)
    problems = machine.problems(here) + _model_problems(check, here.memory_free_bytes)
    serving, unread = _serving()
    problems += [unread] if unread else []
    problems += serving.problems if serving else []
    if args.json:
        report: dict[str, Any] = {**asdict(here), "auto": auto, "model": asdict(check) if check else None}
        report["serving"] = asdict(serving) if serving else None
        print(json.dumps({**report, "problems": problems}, indent=2, ensure_ascii=False))
    else:
        print(_table(here, auto, check, serving))
        print(*(f"BROKEN: {p}" for p in problems), sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


def _serving() -> tuple[ServingFacts | None, str | None]:
    try:
        return serving_facts(), None
    except ConfigError as e:
        return None, f"a server would not start: {e}"


def check_folder(folder: Path, here: Machine, device: torch.device, config: EngineConfig) -> ModelCheck:
    dtype, plan = pick_dtype("auto", device), None
    try:
        check_quantize(config.quantize, gpu_of(device))
        footprint = check_model(folder, config, dtype, dtype)
        check_type(footprint.spec, gpu_of(device))
        if config.gpu_weights is not None:
            plan = WeightBudget.of(folder, config, device, (dtype, dtype)).plan
    except SonantError as e:
        return ModelCheck(str(folder), error=str(e))
    spec, weight_bytes = footprint.spec, footprint.weight_bytes if plan is None else plan.device_bytes
    free_bytes, row, memory = here.memory_free_bytes, row_bytes(spec), None
    if device.type == "cuda":
        memory = gpu_memory(device, weight_bytes)
        free_bytes = here.gpus[device.index].memory_free_bytes
    config = config.resolved(None if memory is None else memory.room(spec))
    rows = (config.max_rows or 1) + 1  # one more for padding
    return ModelCheck(
        folder=str(folder),
        weight_bytes=footprint.weight_bytes,
        row_bytes=row,
        kv_token_bytes=spec.kv_token_bytes,
        kv_dtype=str(spec.kv[0].dtype).removeprefix("torch."),
        needed_bytes=weight_bytes + rows * row + config.max_positions * spec.kv_token_bytes,
        free_bytes=free_bytes,
        chosen=chosen(config, spec, memory),
        weights=None if plan is None else paged_weights(plan, spec, config, device),
        quantize=config.quantize,
    )


def paged_weights(plan: WeightPlan, spec: ModelSpec, config: EngineConfig, device: torch.device) -> PagedWeights:
    floor = expected_floor(plan, spec, config, device)
    speed, step_bytes = floor.bus_bytes_per_s, int(floor.missing_bytes)
    sizes = plan.device_bytes, plan.host_bytes, step_bytes
    return PagedWeights(*sizes, speed, floor.seconds, floor.listeners, str(floor))


def chosen(config: EngineConfig, spec: ModelSpec, memory: GpuMemory | None) -> Chosen:
    """What a config that is resolved for the machine says, and why."""
    rows, batch = config.max_rows or 1, config.max_batch or 1
    if memory is None:
        tokens = block_count(spec, config, torch.device("cpu")) * config.block_tokens
        return Chosen(rows, batch, tokens, "a CPU can speak for a few at once")
    config = replace(config, kv_tokens=memory.likely_kv_tokens(spec, config))
    tokens = block_count(spec, config, torch.device("cuda")) * config.block_tokens
    reason = f"{memory.name} has {memory.processors} processors and {_size(memory.free_bytes)} free beside the weights"
    full = memory.room(spec).batch
    if full < memory.batch:
        reason += f"; {full} rows keep it busy with this model"
    if rows < 2 * full:
        reason += ", not enough for more rows"
    return Chosen(rows, batch, tokens, reason)


def _model_problems(check: ModelCheck | None, memory_free: int | None) -> list[str]:
    if check is None:
        return []
    if check.error is not None:
        return [f"the model cannot be loaded: {check.error}"]
    if check.free_bytes is not None and check.needed_bytes > check.free_bytes:
        needed, free = _size(check.needed_bytes), _size(check.free_bytes)
        return [f"the model needs {needed} of memory, and only {free} is free"]
    if check.weights is not None and memory_free is not None and check.weights.host_bytes > memory_free:
        paged = _size(check.weights.host_bytes)
        return [
            f"{paged} of weights would be pinned in host memory, and only {_size(memory_free)} is free there: raise "
            "--gpu-weights"
        ]
    return []


def _table(here: Machine, auto: dict[str, str], check: ModelCheck | None, serving: ServingFacts | None) -> str:
    rows: list[tuple[str, str]] = [("python", f"{here.python} on {here.platform}")]
    rows += [(name, v or "not installed") for name, v in here.packages.items()]
    rows.append(("cpu", f"{here.cpu_cores} cores, {here.torch_threads} threads in torch"))
    if here.memory_total_bytes and here.memory_free_bytes is not None:
        rows.append(("memory", f"{_size(here.memory_free_bytes)} free of {_size(here.memory_total_bytes)}"))
    rows.append(("cuda", f"in torch: {here.torch_cuda or 'none'}, driver: {here.driver or 'none'}"))
    for i, g in enumerate(here.gpus):
        memory = f"{_size(g.memory_free_bytes)} free of {_size(g.memory_total_bytes)}"
        rows.append((f"gpu {i}", f"{g.name}, compute capability {g.compute_capability}, {memory}"))
    if not here.gpus:
        rows.append(("gpu", f"none: {here.no_gpu_reason}"))
    rows.append(("auto", f"device {auto['device']}, dtype {auto['dtype']}"))
    rows += _kernel_rows(here.kernels)
    if check is not None and check.error is None:
        layers = "" if check.quantize is None else f", layers in {check.quantize}"
        rows.append(("model", f"{check.folder}: complete, {_size(check.weight_bytes)} of weights{layers}"))
        each = f"{_size(check.row_bytes)} a request, {_size(check.kv_token_bytes)} a cached position ({check.kv_dtype})"
        rows.append(("", f"needs {_size(check.needed_bytes)} on {auto['device']} to start; {each}"))
        if check.chosen is not None:
            c = check.chosen
            options = f"max_rows {c.max_rows}, max_batch {c.max_batch}, {c.kv_tokens:,} positions of cache"
            rows.append(("chosen", f"{options}: {c.reason}"))
        if check.weights is not None:
            w = check.weights
            rows.append(("weights", f"{_size(w.device_bytes)} on the device, {_size(w.host_bytes)} in host memory"))
            rows.append(("", w.told))
    if serving is not None:
        rows += serving_rows(serving, here.cpu_cores)
    return "\n".join(f"{name:<12} {value}" for name, value in rows)


def _kernel_rows(kernels: tuple[Kernel, ...]) -> list[tuple[str, str]]:
    """One line for all ops of a device that run the same way for the same reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for k in kernels:
        groups.setdefault((f"{k.device} kernels", f"{k.implementation} ({k.reason})"), []).append(k.op)
    return [(device, f"{how}: {', '.join(ops)}") for (device, how), ops in groups.items()]


def _size(count: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if count >= scale:
            return f"{count / scale:.2f} {unit}"
    return f"{count / 1e3:.1f} kB"
