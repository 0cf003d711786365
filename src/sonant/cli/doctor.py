"""`sonant doctor`: what Sonant will run on here, and whether a model would load, before it is tried."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from sonant.cli import machine
from sonant.cli.machine import Kernel, Machine
from sonant.cli.model_folder import given_codec, given_folder
from sonant.cli.options import add_codec, add_json, add_model
from sonant.cli.serving_facts import ServingFacts, serving_facts, serving_rows
from sonant.config import EngineConfig
from sonant.engine.kv_cache import block_count
from sonant.engine.room import GpuMemory, gpu_memory, row_bytes
from sonant.errors import ConfigError, SonantError
from sonant.loading import pick_device, pick_dtype
from sonant.models.registry import check_model
from sonant.models.spec import ModelSpec

EXAMPLES = """
sonant doctor
sonant doctor --model model
sonant doctor --json
"""


@dataclass(frozen=True)
class Chosen:
    """What an engine takes for the machine where nothing is asked for, and why."""

    max_rows: int
    max_batch: int
    kv_tokens: int
    reason: str


@dataclass(frozen=True)
class ModelCheck:
    """What a model needs on the device that `auto` picks, or why it cannot be loaded."""

    folder: str
    error: str | None = None
    weight_bytes: int = 0
    row_bytes: int = 0  # for each request that speaks at once
    kv_token_bytes: int = 0  # for each position of prompt or speech in the cache
    needed_bytes: int = 0  # weights, all rows of the default config, and one request of full length
    free_bytes: int | None = None
    chosen: Chosen | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_codec(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    here = machine.this_machine()
    device = pick_device("auto")
    dtype = str(pick_dtype("auto", device)).removeprefix("torch.")
    auto = {"device": str(device), "dtype": dtype, "codec_dtype": dtype}
    folder = given_folder(args.model)
    check = None if folder is None else check_folder(folder, here, device, given_codec(args.codec))
    problems = machine.problems(here) + _model_problems(check)
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


def check_folder(folder: Path, here: Machine, device: torch.device, codec: str | None = None) -> ModelCheck:
    dtype = pick_dtype("auto", device)
    try:
        config = EngineConfig(codec=codec)
        footprint = check_model(folder, config, dtype, dtype)
    except SonantError as e:
        return ModelCheck(str(folder), error=str(e))
    spec = footprint.spec
    free_bytes, row, memory = here.memory_free_bytes, row_bytes(spec), None
    if device.type == "cuda":
        memory = gpu_memory(device, footprint.weight_bytes)
        free_bytes = here.gpus[device.index].memory_free_bytes
    config = config.resolved(None if memory is None else memory.room(spec))
    rows = (config.max_rows or 1) + 1  # one more for padding
    return ModelCheck(
        folder=str(folder),
        weight_bytes=footprint.weight_bytes,
        row_bytes=row,
        kv_token_bytes=spec.kv_token_bytes,
        needed_bytes=footprint.weight_bytes + rows * row + config.max_positions * spec.kv_token_bytes,
        free_bytes=free_bytes,
        chosen=chosen(config, spec, memory),
    )


def chosen(config: EngineConfig, spec: ModelSpec, memory: GpuMemory | None) -> Chosen:
    """Of a config that is resolved for the machine."""
    rows, batch = config.max_rows or 1, config.max_batch or 1
    if memory is None:
        tokens = block_count(spec, config, torch.device("cpu")) * config.block_tokens
        return Chosen(rows, batch, tokens, "a CPU speaks for a few at once")
    config = replace(config, kv_tokens=memory.likely_kv_tokens(spec, config))
    tokens = block_count(spec, config, torch.device("cuda")) * config.block_tokens
    reason = f"{memory.name} has {memory.processors} processors and {_size(memory.free_bytes)} beside the weights"
    if rows < 2 * memory.batch:
        reason += ", not enough for more rows"
    return Chosen(rows, batch, tokens, reason)


def _model_problems(check: ModelCheck | None) -> list[str]:
    if check is None:
        return []
    if check.error is not None:
        return [f"the model cannot be loaded: {check.error}"]
    if check.free_bytes is not None and check.needed_bytes > check.free_bytes:
        needed, free = _size(check.needed_bytes), _size(check.free_bytes)
        return [f"the model needs {needed} of memory and {free} is free"]
    return []


def _table(here: Machine, auto: dict[str, str], check: ModelCheck | None, serving: ServingFacts | None) -> str:
    rows: list[tuple[str, str]] = [("python", f"{here.python} on {here.platform}")]
    rows += [(name, v or "not installed") for name, v in here.packages.items()]
    rows.append(("cpu", f"{here.cpu_cores} cores, {here.torch_threads} threads in torch"))
    if here.memory_total_bytes and here.memory_free_bytes is not None:
        rows.append(("memory", f"{_size(here.memory_free_bytes)} free of {_size(here.memory_total_bytes)}"))
    rows.append(("cuda", f"{here.torch_cuda or 'none'} in torch, driver {here.driver or 'none'}"))
    for i, g in enumerate(here.gpus):
        memory = f"{_size(g.memory_free_bytes)} free of {_size(g.memory_total_bytes)}"
        rows.append((f"gpu {i}", f"{g.name}, compute capability {g.compute_capability}, {memory}"))
    if not here.gpus:
        rows.append(("gpu", f"none: {here.no_gpu_reason}"))
    rows.append(("auto", f"device {auto['device']}, dtype {auto['dtype']}"))
    rows += _kernel_rows(here.kernels)
    if check is not None and check.error is None:
        rows.append(("model", f"{check.folder}: complete, {_size(check.weight_bytes)} of weights"))
        each = f"{_size(check.row_bytes)} a request, {_size(check.kv_token_bytes)} a cached position"
        rows.append(("", f"needs {_size(check.needed_bytes)} on {auto['device']} to start; {each}"))
        if check.chosen is not None:
            c = check.chosen
            options = f"max_rows {c.max_rows}, max_batch {c.max_batch}, {c.kv_tokens:,} positions of cache"
            rows.append(("chosen", f"{options}: {c.reason}"))
    if serving is not None:
        rows += serving_rows(serving, here.cpu_cores)
    return "\n".join(f"{name:<12} {value}" for name, value in rows)


def _kernel_rows(kernels: tuple[Kernel, ...]) -> list[tuple[str, str]]:
    """A line for all ops of a device that run the same way for the same reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for k in kernels:
        groups.setdefault((f"{k.device} kernels", f"{k.implementation} ({k.reason})"), []).append(k.op)
    return [(device, f"{how}: {', '.join(ops)}") for (device, how), ops in groups.items()]


def _size(count: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if count >= scale:
            return f"{count / scale:.2f} {unit}"
    return f"{count / 1e3:.1f} kB"
