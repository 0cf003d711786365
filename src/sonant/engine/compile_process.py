"""The process that compiles a GPU's kernels ahead: `compile_ahead.py` says why, and `recorded_launches.py` how.

It never touches the GPU, so that its children may be forked: they have torch, Triton and the model's shapes already.
They are nice to the engine, which reads weights and captures graphs beside them. What they find is compiled in the
order in which the engine will ask for it, but for what takes long, and what is printed is for `CompileAhead`.
"""

from __future__ import annotations

import gc
import importlib
import json
import multiprocessing
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from heapq import heappop, heappush
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from triton import knobs

from sonant.engine.compile_ahead import CompileJob
from sonant.engine.rehearsal import Rehearsal
from sonant.kernels.recorded_launches import AnyForm
from sonant.kernels.triton_setup import ask_ptxas, begin_hash, import_kernels

FormKey = tuple[str, str, str]
_IN_HAND = 2  # tasks that wait in the children's queue, so that none of them is idle
_TORCH_COMPILER = "torch._dynamo"
_NICE = 5
_LOOK_S = 1.0


@dataclass(frozen=True, order=True)
class Task:
    """What a child does, on what, and who is told. Rehearsals come first, then kernels as they were found."""

    is_kernel: bool
    order: int
    work: Callable[[Any], Any] = field(compare=False)
    given: Any = field(compare=False)
    take: Callable[[Future[Any]], None] = field(compare=False)
    is_slow: bool = field(default=False, compare=False)


class Compiling:
    """Kernels on their way, and which stages have all of theirs. Children rehearse stages and compile what is found.

    Up to half of them have what takes long, as soon as it is found, since all would wait for it in the end. The others
    rehearse what is left, and then compile kernels in the order in which they were found: graphs wait for the first.
    """

    def __init__(self, rehearsal: Rehearsal, workers: int) -> None:
        self.found = self.compiled = 0
        self.ready: list[int] = []  # stages, in the order in which they came to be
        self.folders: list[str] = []
        self.failures: list[str] = []
        self._told = 0  # of those that are ready
        self._lock = threading.RLock()  # a callback of what is done already is called at once
        self._left = [1] * len(rehearsal)  # that each stage waits for: its rehearsal, then its kernels
        self._unseen = len(rehearsal)  # stages that are not rehearsed yet
        self._waiting: dict[FormKey, list[int] | None] = {}  # stages, by kernel; None: it is compiled
        self._tasks: list[Task] = []  # two heaps
        self._slow_tasks: list[Task] = []
        self._running, self._most_running = 0, workers + _IN_HAND
        self._slow_running, self._most_slow = 0, max(1, workers // 2)
        self._all_done = threading.Event()
        context = multiprocessing.get_context("fork")
        self._pool = ProcessPoolExecutor(
            workers, mp_context=context, initializer=_begin, initargs=(os.getpid(), rehearsal)
        )
        for stage in range(len(rehearsal)):
            heappush(self._tasks, Task(False, stage, _rehearse, stage, partial(self._rehearsed, stage)))
        with self._lock:
            self._go_on()  # The first that is submitted forks all children, before there are threads.

    def finish(self) -> None:
        """Wait for all."""
        self._all_done.wait()
        self._pool.shutdown(wait=True)

    def _go_on(self) -> None:
        """Keep all children busy, and hardly more: what is found meanwhile may have to come first."""
        while self._running < self._most_running and (task := self._next()) is not None:
            self._running += 1
            self._slow_running += task.is_slow
            self._pool.submit(task.work, task.given).add_done_callback(partial(self._done, task))
        if not self._running:
            self._all_done.set()

    def _next(self) -> Task | None:
        if self._slow_tasks and (self._slow_running < self._most_slow or not self._tasks):
            return heappop(self._slow_tasks)
        return heappop(self._tasks) if self._tasks else None

    def _done(self, task: Task, done: Future[Any]) -> None:
        with self._lock:
            self._running -= 1
            self._slow_running -= task.is_slow
            if isinstance(done.exception(), BrokenExecutor):  # A child was killed, and no other takes anything more.
                self._tasks.clear()
                self._slow_tasks.clear()
            task.take(done)
            self._report()
            self._go_on()

    def _rehearsed(self, stage: int, done: Future[list[AnyForm]]) -> None:
        if error := done.exception():
            self.failures.append(f"stage {stage}: {_told(error)}")
        for form in [] if error else done.result():
            self._add(stage, form)
        self._unseen -= 1
        self._less_to_wait_for(stage)

    def _add(self, stage: int, form: AnyForm) -> None:
        key = (form.module, form.name, form.key)
        if key not in self._waiting:
            self._waiting[key] = []
            self.found += 1
            tasks = self._slow_tasks if form.is_slow else self._tasks
            take = partial(self._compiled, form.name, key)
            heappush(tasks, Task(True, self.found, _compile, form, take, form.is_slow))
        stages = self._waiting[key]
        if stages is not None:
            stages.append(stage)
            self._left[stage] += 1

    def _compiled(self, name: str, key: FormKey, done: Future[str]) -> None:
        stages, self._waiting[key] = self._waiting[key], None
        self.compiled += 1
        if error := done.exception():
            self.failures.append(f"{name}: {_told(error)}")
        else:
            self.folders.append(done.result())
        for stage in stages or ():
            self._less_to_wait_for(stage)

    def _less_to_wait_for(self, stage: int) -> None:
        self._left[stage] -= 1
        if self._left[stage] == 0:
            self.ready.append(stage)

    def _report(self) -> None:
        news, self._told = self.ready[self._told :], len(self.ready)
        _say({"kernels": [self.found, self.compiled, news, not self._unseen]})


def main() -> int:
    """Begun without a collector, see `compiler.py`."""
    hashing = begin_hash()
    do_without_torchs_compiler()
    knobs.compilation.store_binary_only = True  # An engine would read all that lies beside the machine code.
    _import_all()
    line = sys.stdin.readline()
    if not line:
        return 0  # Nobody needs it.
    job = CompileJob(**json.loads(line))
    parent = os.getppid()
    rehearsal = Rehearsal.of(job)
    ask_ptxas(rehearsal.gpu)
    hashing.join()  # Children have all of it from here, and no thread may be about when they are forked.
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


class _NoTorchCompiler(ModuleType):
    """torch._dynamo, of which torch's shape functions only ask that it keep away from them: which it does if it is not
    there. Whoever asks for more gets all of it. Its import takes most of a second, and its wrappers more."""

    def __init__(self, path: list[str]) -> None:
        super().__init__(_TORCH_COMPILER)
        self.__path__ = path

    def disable(self, fn: Any = None, *_: Any, **__: Any) -> Any:
        return fn

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Who looks through all modules does not ask for this one.
            raise AttributeError(name)
        if sys.modules.get(_TORCH_COMPILER) is self:
            del sys.modules[_TORCH_COMPILER]
        return getattr(importlib.import_module(_TORCH_COMPILER), name)


def do_without_torchs_compiler() -> None:
    """In a process that compiles with Triton alone."""
    if _TORCH_COMPILER not in sys.modules:
        sys.modules[_TORCH_COMPILER] = _NoTorchCompiler([str(Path(torch.__file__).parent / "_dynamo")])


def _import_all() -> None:
    """What takes long, once for all children, while the engine finds out what it needs."""
    import_kernels()
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


def _told(error: BaseException) -> str:
    """Its own words: only they name the file that cannot be written."""
    return f"{type(error).__name__}: {error}"


def _say(news: object) -> None:
    print(json.dumps(news), flush=True)
