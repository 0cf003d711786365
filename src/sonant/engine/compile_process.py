"""The process that compiles a GPU's kernels ahead: `compile_ahead.py` says why, and `recorded_launches.py` how.

It never touches the GPU, so that its children may be forked: they have torch and Triton already. They are nice to the
engine, which reads weights and captures graphs beside them. What it finds is compiled in the order in which the engine
will ask for it, and what it prints is for `CompileAhead`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch

from sonant.engine.compile_ahead import CompileJob
from sonant.engine.runner import Runner
from sonant.kernels.gpu import Gpu, planning_for
from sonant.kernels.ops import OPS, choose
from sonant.kernels.recorded_launches import KernelForm, launches_recorded
from sonant.models.registry import load_model

_NICE = 5
_LOOK_S = 1.0


class Compiling:
    """Kernels on their way, and how far all stages are."""

    def __init__(self, gpu: Gpu, workers: int) -> None:
        self.gpu = gpu
        self._lock = threading.Lock()
        self._left: list[int] = [0]  # kernels that each stage still waits for
        self.found = self.compiled = self.stages = 0
        self._planned = False
        self.folders: list[str] = []
        self.failures: list[str] = []
        context = multiprocessing.get_context("fork")
        self._pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(os.getpid(),))
        self._pool.submit(os.getpid).result()  # the children are forked here, before anything has threads

    def add(self, form: KernelForm) -> None:
        with self._lock:
            stage = len(self._left) - 1
            self._left[stage] += 1
            self.found += 1
        self._pool.submit(form.compile, self.gpu).add_done_callback(lambda done: self._compiled_one(stage, form, done))

    def end_stage(self) -> None:
        with self._lock:
            self._left.append(0)
            self._report()

    def finish(self) -> None:
        """Wait for all."""
        with self._lock:
            self._left.pop()
            self._planned = True
            self._report()
        self._pool.shutdown(wait=True)

    def _compiled_one(self, stage: int, form: KernelForm, done: Future[str]) -> None:
        with self._lock:
            self._left[stage] -= 1
            self.compiled += 1
            if error := done.exception():
                self.failures.append(f"{form.name}: {error}")
            else:
                self.folders.append(done.result())
            self._report()

    def _report(self) -> None:
        complete = len(self._left) if self._planned else len(self._left) - 1
        while self.stages < complete and self._left[self.stages] == 0:
            self.stages += 1
        _say({"kernels": [self.found, self.compiled, self.stages, self._planned]})


def rehearse(job: CompileJob, compiling: Compiling) -> None:
    """All steps that the engine will capture, on the device that has no memory."""
    meta, memory, config = torch.device("meta"), job.gpu_memory(), job.engine_config()
    dtypes = (getattr(torch, name) for name in (job.dtype, job.codec_dtype))
    with planning_for(compiling.gpu), launches_recorded(compiling.gpu, compiling.add):
        model = load_model(Path(job.folder), config, meta, *dtypes)
        config = config.resolved(memory.room(model.spec))
        if config.kv_tokens is None:
            config = replace(config, kv_tokens=memory.likely_kv_tokens(model.spec, config))
        sizes = config.frame_sizes(model.spec.frame_s, model.spec.codec_lookahead)
        for _ in Runner(model, config, sizes, meta).rehearse():
            compiling.end_stage()


def main() -> int:
    job = CompileJob(**json.loads(sys.stdin.readline()))
    memory = job.gpu_memory()
    for op in OPS:
        choose(op, "cuda")  # imports its kernels, once for all children
    compiling = Compiling(Gpu(memory.name, memory.capability), job.workers)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    rehearse(job, compiling)
    compiling.finish()
    if compiling.failures:
        print("\n".join(compiling.failures), flush=True)
        return 1
    _leave_stamp(Path(job.stamp), compiling.folders)
    return 0


def _leave_stamp(path: Path, folders: Sequence[str]) -> None:
    """Whole or not at all."""
    part = path.with_suffix(f".{os.getpid()}")
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_text(json.dumps(sorted(set(folders))), encoding="utf-8")
    part.replace(path)


def _begin(parent: int) -> None:
    os.nice(_NICE)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """Nobody else would tell a process that the one it works for was killed."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


def _say(news: object) -> None:
    print(json.dumps(news), flush=True)


if __name__ == "__main__":
    sys.exit(main())
