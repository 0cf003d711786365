"""Records other people's models for `sonant profile read`: one trace for times, one with Python lines."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function


class StepRanges:
    """Marks steps of a generation: each begins when `module` is called, and ends when it is called again."""

    def __init__(self, module: nn.Module, argument: str = "inputs_embeds") -> None:
        self._open: record_function | None = None
        self._argument = argument
        module.register_forward_pre_hook(self._begin, with_kwargs=True)

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.end()
        given = kwargs.get(self._argument)
        given = args[0] if given is None and args else given
        rows, length = given.shape[:2] if given is not None else (1, 1)
        label = f"step rows={rows} bucket={rows} prefill={length if length > 1 else 0}"
        self._open = record_function(label)
        self._open.__enter__()

    def end(self) -> None:
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None


def record(generate: Callable[[int], Any], ranges: StepRanges, folder: Path, frames: int) -> None:
    """`generate(n)` makes n frames. Writes timing.json.gz and mapping.json.gz."""
    folder.mkdir(parents=True, exist_ok=True)
    cuda = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if cuda else [])
    generate(4)  # in which libraries choose their kernels
    began_s = time.perf_counter()
    generate(frames)
    if cuda:
        torch.cuda.synchronize()
    ranges.end()
    print(f"{1e3 * (time.perf_counter() - began_s) / frames:.1f} ms a frame without the profiler", flush=True)
    for name, stacks, count in (("timing", False, frames), ("mapping", True, 4)):
        with profile(activities=activities, with_stack=stacks, record_shapes=stacks, profile_memory=stacks) as profiler:
            generate(count)
            ranges.end()
            if cuda:
                torch.cuda.synchronize()
        profiler.export_chrome_trace(str(folder / f"{name}.json.gz"))
        print(f"{folder / name}.json.gz", flush=True)
