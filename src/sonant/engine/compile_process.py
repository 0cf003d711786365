"""The process that compiles a GPU's kernels ahead: `compile_ahead.py` says why, and `recorded_launches.py` how.

It never touches the GPU, so its children can be forked, and have torch, Triton and the model's shapes from the start.
They run at a lower priority than the engine, which reads weights and captures graphs meanwhile. Kernels are compiled in
the order in which the engine will need them, except that slow ones come earlier. The output is for `CompileAhead`.
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
_IN_HAND = 2  # tasks in the queue of the children, so that none of them is idle
_TORCH_COMPILER = "torch._dynamo"
_NICE = 5
_LOOK_S = 1.0


@dataclass(frozen=True, order=True)
class Task:
    """A function for a child to call, its argument, and what takes its result.

    Rehearsals come first, then kernels in the order in which they were found.
    """

    is_kernel: bool
    order: int
    work: Callable[[Any], Any] = field(compare=False)
    given: Any = field(compare=False)
    take: Callable[[Future[Any]], None] = field(compare=False)
    is_slow: bool = field(default=False, compare=False)


class Compiling:
    """Has children rehearse stages and compile the kernels found, and knows which stages have all of theirs.

    Up to half of the children compile slow kernels as soon as they are found, since all would wait for those in the
    end. The others first rehearse all stages, and then compile kernels in the order in which they were found, since
    graphs wait for the first.
    """

    def __init__(self, rehearsal: Rehearsal, workers: int) -> None:
        self.found = self.compiled = 0
        self.ready: list[int] = []  # stages, in the order in which they became ready
        self.folders: list[str] = []
        self.failures: list[str] = []
        self._told = 0  # how many of the ready ones have been reported
        self._lock = threading.RLock()  # re-entered: a callback of a finished future is called at once
        self._left = [1] * len(rehearsal)  # how much each stage waits for: its rehearsal, then its kernels
        self._unseen = len(rehearsal)  # how many stages are not rehearsed yet
        self._waiting: dict[FormKey, list[int] | None] = {}  # stages that wait for a kernel; None: it is compiled
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
            self._go_on()  # The first task submitted forks all children, before there are threads.

    def finish(self) -> None:
        """Wait for all tasks."""
        self._all_done.wait()
        self._pool.shutdown(wait=True)

    def _go_on(self) -> None:
        """Keep all children busy, but submit hardly more, since kernels found meanwhile may have to come first."""
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
            if isinstance(done.exception(), BrokenExecutor):  # A child was killed, so no other takes more tasks.
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
    """The garbage collector is off at first, see `compiler.py`."""
    hashing = begin_hash()
    do_without_torchs_compiler()
    knobs.compilation.store_binary_only = True  # or an engine would read what lies beside the machine code
    _import_all()
    line = sys.stdin.readline()
    if not line:
        return 0  # dismissed
    job = CompileJob(**json.loads(line))
    parent = os.getppid()
    rehearsal = Rehearsal.of(job)
    ask_ptxas(rehearsal.gpu)
    hashing.join()  # Children inherit its result, and no thread may run when they are forked.
    gc.freeze()  # Then the children's collectors neither scan nor copy the pages that they inherit.
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
    """Stands in for torch._dynamo, from which torch's shape functions only need `disable`, which does nothing here.

    Whoever asks for more gets the real module. Its import takes most of a second, and its wrappers more.
    """

    def __init__(self, path: list[str]) -> None:
        super().__init__(_TORCH_COMPILER)
        self.__path__ = path

    def disable(self, fn: Any = None, *_: Any, **__: Any) -> Any:
        return fn

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Code that scans all modules does not need this one.
            raise AttributeError(name)
        if sys.modules.get(_TORCH_COMPILER) is self:
            del sys.modules[_TORCH_COMPILER]
        return getattr(importlib.import_module(_TORCH_COMPILER), name)


def do_without_torchs_compiler() -> None:
    """In a process that compiles with Triton alone."""
    if _TORCH_COMPILER not in sys.modules:
        sys.modules[_TORCH_COMPILER] = _NoTorchCompiler([str(Path(torch.__file__).parent / "_dynamo")])


def _import_all() -> None:
    """Import what takes long once for all children, while the engine finds out which job there is."""
    import_kernels()
    told, _, _ = select.select([sys.stdin], [], [], 0)
    if not told:  # There is time: the first such step on the meta device makes torch import parts for a second.
        torch.arange(2, device="meta", dtype=torch.int64).float() / 2


def _leave_stamp(path: Path, folders: Sequence[str]) -> None:
    """Written whole or not at all."""
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
    """A child's rehearsal, inherited from its parent's memory."""
    return []


def _rehearse(stage: int) -> list[AnyForm]:
    return _own()[0].run(stage)


def _compile(form: AnyForm) -> str:
    return form.compile(_own()[0].gpu)


def _end_with(parent: int) -> None:
    """Polls, since nothing else would tell this process that its parent was killed."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


def _told(error: BaseException) -> str:
    """With the error's own words, since only they name a file that cannot be written."""
    return f"{type(error).__name__}: {error}"


def _say(news: object) -> None:
    print(json.dumps(news), flush=True)
