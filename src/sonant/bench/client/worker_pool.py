"""Starts the client's processes, hands out shares of a load to them, and gathers what they measured."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any

from sonant.bench.client import worker
from sonant.bench.client.load import Load, shares
from sonant.bench.client.prompts import Prompt
from sonant.bench.client.sample import Sample
from sonant.bench.client.target import Target
from sonant.bench.client.worker import LoadProgress, WorkerJob, WorkerResult
from sonant.errors import EngineError, SonantError

_LEAD_S = 0.1  # from handing out jobs to their start, so that every process has its own by then
_JOIN_S = 10.0


@dataclass(frozen=True)
class Measured:
    """What the processes measured of one load. `origin_s` is its start on the machine's clock."""

    load: Load
    origin_s: float
    wall_s: float
    samples: list[Sample]
    errors_s: list[float]
    interrupted: bool


class WorkerPool:
    """`with WorkerPool(target, prompts, processes=2) as pool: pool.run(load)`"""

    def __init__(
        self, target: Target, prompts: Sequence[Prompt], *, processes: int = 1, timeout_s: float = 300.0
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self.jobs: list[Connection] = []
        self.results: list[Connection] = []
        self.processes = []
        for _ in range(processes):
            taken, given = context.Pipe(duplex=False)
            heard, told = context.Pipe(duplex=False)
            process = context.Process(target=worker.main, args=(taken, told, target, prompts, timeout_s))
            process.start()
            taken.close()
            told.close()
            self.jobs.append(given)
            self.results.append(heard)
            self.processes.append(process)

    def __enter__(self) -> WorkerPool:
        try:
            for pipe in self.results:
                self._receive(pipe)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the pipes, upon which the processes end."""
        for pipe in (*self.jobs, *self.results):
            pipe.close()
        for process in self.processes:
            process.join(_JOIN_S)
            if process.is_alive():
                process.kill()

    def run(
        self, load: Load, *, keep_sound: bool = False, on_progress: Callable[[LoadProgress], None] | None = None
    ) -> Measured:
        """Puts a load on the server. Ctrl-C ends it early, and returns what was measured until then."""
        dealt = shares(load, len(self.processes))
        used = self.results[: len(dealt)]
        origin_s = time.perf_counter() + _LEAD_S
        for pipe, share in zip(self.jobs, dealt, strict=False):
            pipe.send(WorkerJob(load, share, origin_s, keep_sound))
        done: dict[Connection, WorkerResult] = {}
        states: dict[Connection, LoadProgress] = {}
        interrupted = False
        while len(done) < len(used):
            try:
                self._gather(used, done, states)
                if on_progress is not None:
                    on_progress(_together(states))
            except KeyboardInterrupt:
                if interrupted:
                    raise  # a second Ctrl-C does not wait for results
                interrupted = True
                for pipe in self.jobs[: len(dealt)]:
                    pipe.send("stop")
        samples = sorted((s for d in done.values() for s in d.samples), key=lambda s: s.started_s)
        ends_s = [s.started_s + s.end_s for s in samples]
        wall_s = max(ends_s, default=origin_s) - origin_s
        errors_s = [e for d in done.values() for e in d.errors_s]
        return Measured(load, origin_s, wall_s, samples, errors_s, interrupted)

    def _gather(
        self,
        used: list[Connection],
        done: dict[Connection, WorkerResult],
        states: dict[Connection, LoadProgress],
    ) -> None:
        for pipe in wait(set(used) - done.keys(), timeout=0.5):
            assert isinstance(pipe, Connection)
            message = self._receive(pipe)
            if isinstance(message, LoadProgress):
                states[pipe] = message
            else:
                done[pipe] = message

    def _receive(self, pipe: Connection) -> Any:
        try:
            message = pipe.recv()
        except (EOFError, OSError) as e:
            raise EngineError("a process of the load test died; see its message above") from e
        if isinstance(message, SonantError):
            raise message
        return message


def _together(states: dict[Connection, LoadProgress]) -> LoadProgress:
    values = states.values()
    return LoadProgress(sum(s.done for s in values), sum(s.failed for s in values), sum(s.in_flight for s in values))
