"""A process of the load test's client: an event loop full of streams, and nothing else on its mind."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import resource
import signal
from collections.abc import Callable, Sequence
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
class Order:
    load: Load
    share: Share
    start_s: float  # on the machine's clock, the same for all processes
    keep_sound: bool = False


@dataclass(frozen=True)
class Progress:
    done: int
    failed: int
    in_flight: int


@dataclass(frozen=True)
class Done:
    samples: list[Sample]
    errors_s: list[float]  # of the client's own timing, by the metronome


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed: its timing error at 1,000 streams was the smaller one (docs/bench.md)."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop


def allow_files(count: int, *, at_most: bool = False) -> None:
    """Every stream is an open file; the usual limit of 1,024 is for people. `at_most`: fewer may do."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and at_most:
        count = min(count, hard)
    if soft >= count:
        return
    if hard != resource.RLIM_INFINITY and hard < count:
        raise ConfigError(f"{count} open files are needed and {hard} allowed: raise it with ulimit -n {count}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def main(orders: Connection, results: Connection, target: Target, prompts: Sequence[Prompt], timeout_s: float) -> None:
    """Takes orders until their pipe closes. Ctrl-C is the parent's to hear."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(orders, results, Driver(target, prompts, timeout_s=timeout_s)))


async def _serve(orders: Connection, results: Connection, driver: Driver) -> None:
    loop = asyncio.get_running_loop()
    try:
        await driver.resolve()
    except SonantError as e:
        results.send(e)
        return
    waiting: asyncio.Queue[Order | None] = asyncio.Queue()

    def hear() -> None:
        try:
            message = orders.recv()
        except (EOFError, OSError):
            loop.remove_reader(orders.fileno())
            message = None
        if message == "stop":
            driver.stop()
        else:
            waiting.put_nowait(message)

    loop.add_reader(orders.fileno(), hear)
    async with Metronome() as metronome:
        results.send("ready")
        while (order := await waiting.get()) is not None:
            try:
                results.send(await _level(results, driver, metronome, order))
            except SonantError as e:
                results.send(e)


async def _level(results: Connection, driver: Driver, metronome: Metronome, order: Order) -> Done:
    allow_files(len(order.share.starts_s) + _SPARE_FILES, at_most=order.load.rate is not None)
    driver.keep_sound = order.keep_sound
    reporter = asyncio.create_task(_report(results, driver))
    gc.collect()
    gc.disable()  # a collection in the middle would be seen as lateness of the server
    metronome.clear()
    try:
        await driver.run(order.load, order.share, order.start_s)
        errors_s = metronome.errors_since(order.start_s)
    finally:
        gc.enable()
        reporter.cancel()
    return Done(driver.samples(), errors_s)


async def _report(results: Connection, driver: Driver) -> None:
    while True:
        await asyncio.sleep(_PROGRESS_S)
        failed = sum(ended.failed for ended in driver.ended)
        results.send(Progress(len(driver.ended), failed, driver.in_flight))
