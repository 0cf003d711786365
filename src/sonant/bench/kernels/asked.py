"""Which cases a command asks for, as plain values that can be sent to processes to compile the kernels ahead."""

from __future__ import annotations

import multiprocessing
from collections.abc import Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch

from sonant.bench.kernels.attention_cases import AttentionCases
from sonant.bench.kernels.case import Case, use
from sonant.bench.kernels.cases import Cases
from sonant.config import Quantization
from sonant.kernels.dispatch import choose
from sonant.kernels.gpu import gpu_of
from sonant.models.workload import Workloads


@dataclass(frozen=True)
class Asked:
    device: torch.device
    dtype: torch.dtype
    quantize: Quantization | None
    workloads: tuple[Workloads, ...]
    rows: tuple[int, ...]
    prefill: int
    ops: Collection[str]
    where: str  # a substring of each case's own `where`

    def cases(self) -> Iterator[Case]:
        return (case for case in self._every() if case.op in self.ops and self.where in case.where)

    def _every(self) -> Iterator[Case]:
        cases = Cases(self.device, self.dtype, self.quantize)
        for workloads in self.workloads:
            yield from cases.every(workloads, self.rows, self.prefill)
        if self.device.type == "cuda":  # a CPU would take minutes for each
            yield from AttentionCases(self.device, self.dtype).every()


def compile_ahead(asked: Asked, processes: int) -> None:
    """Compile into the caches on disk, where a process that measures finds the machine code."""
    context = multiprocessing.get_context("spawn")  # CUDA does not work after a fork
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        for done in [pool.submit(partial(run_share, asked, n, processes)) for n in range(processes)]:
            done.exception()  # a case that fails here fails again when it is measured, and is reported then


def run_share(asked: Asked, first: int, step: int) -> int:
    """Run every `step`-th case from `first` on once → how many."""
    use(asked.device)
    ran = 0
    for case in islice(asked.cases(), first, None, step):
        with torch.inference_mode():
            call = case.make()
            choose(case.op, asked.device.type, gpu=gpu_of(asked.device)).function(*call.args, **call.kwargs)
        ran += 1
    return ran
