"""The process that compiles a GPU's kernels ahead: `compile_ahead.py` says why, and `recorded_launches.py` how.

It never touches the GPU, so that its children may be forked: they have torch, Triton and the model's shapes already.
They are nice to the engine, which reads weights and captures graphs beside them. What they find is compiled in the
order in which the engine will ask for it, and what is printed is for `CompileAhead`.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import select
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path

import torch

from sonant.engine.compile_ahead import CompileJob
from sonant.engine.rehearsal import Rehearsal
from sonant.kernels.dispatch import OPS, choose
from sonant.kernels.recorded_launches import AnyForm

FormKey = tuple[str, str, str]
_NICE = 5
_LOOK_S = 1.0


class Compiling:
    """Kernels on their way, and how far all stages are. Children rehearse stages and compile what is found."""

    def __init__(self, rehearsal: Rehearsal, workers: int) -> None:
        self.found = self.compiled = self.stages = 0
        self.folders: list[str] = []
        self.failures: list[str] = []
        self._lock = threading.RLock()  # a callback of what is done already is called at once
        self._left = [1] * len(rehearsal)  # that each stage waits for: its rehearsal, then its kernels
        self._unseen = len(rehearsal)  # stages that are not rehearsed yet
        self._waiting: dict[FormKey, list[int] | None] = {}  # stages, by kernel; None: it is compiled
        context = multiprocessing.get_context("fork")
        self._pool = ProcessPoolExecutor(
            workers, mp_context=context, initializer=_begin, initargs=(os.getpid(), rehearsal)
        )
        for stage in range(len(rehearsal)):  # the first of them forks all children, before there are threads
            self._pool.submit(_rehearse, stage).add_done_callback(partial(self._rehearsed, stage))
        self._all_seen = threading.Event()

    def finish(self) -> None:
        """Wait for all."""
        self._all_seen.wait()
        self._pool.shutdown(wait=True)

    def _rehearsed(self, stage: int, done: Future[list[AnyForm]]) -> None:
        with self._lock:
            if error := done.exception():
                self.failures.append(f"stage {stage}: {error!r}")
            for form in [] if error else done.result():
                self._add(stage, form)
            self._left[stage] -= 1
            self._unseen -= 1
            self._report()
            if not self._unseen:
                self._all_seen.set()

    def _add(self, stage: int, form: AnyForm) -> None:
        key = (form.module, form.name, form.key)
        if key not in self._waiting:
            self._waiting[key] = []
            self.found += 1
            try:
                self._pool.submit(_compile, form).add_done_callback(partial(self._compiled, form.name, key))
            except RuntimeError as error:  # a child was killed: none of the others works any more
                self._waiting[key] = None
                self.failures.append(f"{form.name}: {error!r}")
        stages = self._waiting[key]
        if stages is not None:
            stages.append(stage)
            self._left[stage] += 1

    def _compiled(self, name: str, key: FormKey, done: Future[str]) -> None:
        with self._lock:
            for stage in self._waiting[key] or ():
                self._left[stage] -= 1
            self._waiting[key] = None
            self.compiled += 1
            if error := done.exception():
                self.failures.append(f"{name}: {error!r}")
            else:
                self.folders.append(done.result())
            self._report()

    def _report(self) -> None:
        while self.stages < len(self._left) and self._left[self.stages] == 0:
            self.stages += 1
        _say({"kernels": [self.found, self.compiled, self.stages, not self._unseen]})


def main() -> int:
    """Begun without a collector, see `compiler.py`."""
    _import_all()
    line = sys.stdin.readline()
    if not line:
        return 0  # Nobody needs it.
    job = CompileJob(**json.loads(line))
    parent = os.getppid()
    rehearsal = Rehearsal.of(job)
    gc.freeze()  # Children need not look through what they have from here, nor have pages of their own for it.
    gc.enable()
    compiling = Compiling(rehearsal, job.workers)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    compiling.finish()
    if compiling.failures:
        print("\n".join(compiling.failures), flush=True)
        return 1
    _leave_stamp(Path(job.stamp), compiling.folders)
    return 0


def _import_all() -> None:
    """What takes long, once for all children, while the engine finds out what it needs."""
    for op in OPS:
        choose(op, "cuda")
    told, _, _ = select.select([sys.stdin], [], [], 0)
    if not told:  # The first of such steps without memory brings parts of torch along, a second's worth of them.
        torch.arange(2, device="meta", dtype=torch.int64).float() / 2


def _leave_stamp(path: Path, folders: Sequence[str]) -> None:
    """Whole or not at all."""
    part = path.with_suffix(f".{os.getpid()}")
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_text(json.dumps(sorted(set(folders))), encoding="utf-8")
    part.replace(path)


def _begin(parent: int, rehearsal: Rehearsal) -> None:
    os.nice(_NICE)
    _own().append(rehearsal)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


@cache
def _own() -> list[Rehearsal]:
    """A child's, which it has from its parent's memory."""
    return []


def _rehearse(stage: int) -> list[AnyForm]:
    return _own()[0].run(stage)


def _compile(form: AnyForm) -> str:
    return form.compile(_own()[0].gpu)


def _end_with(parent: int) -> None:
    """Nobody else would tell a process that the one it works for was killed."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


def _say(news: object) -> None:
    print(json.dumps(news), flush=True)
