"""A process of the load test's client: an event loop full of streams, and nothing else."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import resource
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

from sonant.bench.client.driver import Driver
from sonant.bench.client.load import Load, Share
from sonant.bench.client.metronome import Metronome
from sonant.bench.client.prompts import Prompt
from sonant.bench.client.sample import Sample
from sonant.bench.client.target import Target
from sonant.errors import ConfigError, SonantError

_PROGRESS_S = 0.25
_SPARE_FILES = 64


@dataclass(frozen=True)
class WorkerJob:
    """A share of a load, for one process."""

    load: Load
    share: Share
    start_s: float  # on the machine's clock, the same for all processes
    keep_sound: bool = False


@dataclass(frozen=True)
class LoadProgress:
    """How far a load has come, in requests."""

    done: int
    failed: int
    in_flight: int


@dataclass(frozen=True)
class WorkerResult:
    samples: list[Sample]
    errors_s: list[float]  # the client's own timing errors, by the metronome


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's if it is installed, since its timing error at 1,000 streams was the smaller one (docs/bench.md)."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop


def allow_files(count: int, *, at_most: bool = False) -> None:
    """Raise the limit on open files, since every stream is one. With `at_most` a lower hard limit is accepted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and at_most:
        count = min(count, hard)
    if soft >= count:
        return
    if hard != resource.RLIM_INFINITY and hard < count:
        raise ConfigError(f"{count} open files are needed and {hard} allowed: raise it with ulimit -n {count}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def main(jobs: Connection, results: Connection, target: Target, prompts: Sequence[Prompt], timeout_s: float) -> None:
    """Takes jobs until their pipe closes. Ctrl-C is handled by the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(BrokenPipeError), asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(jobs, results, Driver(target, prompts, timeout_s=timeout_s)))


async def _serve(jobs: Connection, results: Connection, driver: Driver) -> None:
    loop = asyncio.get_running_loop()
    try:
        await driver.resolve()
    except SonantError as e:
        results.send(e)
        return
    waiting: asyncio.Queue[WorkerJob | None] = asyncio.Queue()

    def hear() -> None:
        try:
            message = jobs.recv()
        except (EOFError, OSError):
            loop.remove_reader(jobs.fileno())
            message = None
            driver.stop()  # the parent is gone, perhaps killed, and the load on the server must not outlive it
        if message == "stop":
            driver.stop()
        else:
            waiting.put_nowait(message)

    loop.add_reader(jobs.fileno(), hear)
    async with Metronome() as metronome:
        results.send("ready")
        while (job := await waiting.get()) is not None:
            try:
                results.send(await _run_job(results, driver, metronome, job))
            except SonantError as e:
                results.send(e)


async def _run_job(results: Connection, driver: Driver, metronome: Metronome, job: WorkerJob) -> WorkerResult:
    allow_files(len(job.share.starts_s) + _SPARE_FILES, at_most=job.load.rate is not None)
    reporter = asyncio.create_task(_send_progress(results, driver))
    gc.collect()
    gc.disable()  # a collection during the load would look like lateness of the server
    metronome.clear()
    try:
        await driver.run(job.load, job.share, job.start_s, keep_sound=job.keep_sound)
        errors_s = metronome.errors_since(job.start_s)
    finally:
        gc.enable()
        reporter.cancel()
    return WorkerResult(driver.samples(), errors_s)


async def _send_progress(results: Connection, driver: Driver) -> None:
    with suppress(BrokenPipeError):  # then the pipe of jobs closes too, and ends the process
        while True:
            await asyncio.sleep(_PROGRESS_S)
            failed = sum(ended.failed for ended in driver.ended)
            results.send(LoadProgress(len(driver.ended), failed, driver.in_flight))
