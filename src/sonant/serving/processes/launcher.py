"""The first process of the server: starts those of the engine and the front ends, and starts again what has died.

It answers nobody and holds no model, so that nothing but a signal ends it. The first SIGTERM (or SIGINT) drains: front
ends let running requests finish, then the engine is told to end. A second one ends it at once.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from asyncio.subprocess import Process
from contextlib import suppress
from dataclasses import replace
from urllib.parse import urlsplit

from sonant.exit_codes import EXIT_ERROR
from sonant.serving.observability.shared_counters import forget_process
from sonant.serving.processes.setup import Setup
from sonant.serving.start_check import page_address

_GRACE_S = 5.0  # for a process to end after it was told to
_STEADY_S = 1.0  # a process that was killed after so long was not killed at its start
_START_S = 60.0  # a process that ended by itself before that failed at its start, which may take long
_PAUSES_S = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)  # before a process is started again, by how often it failed at its start
_STARTUP_FAILED, _MOST_FAILURES = 3, 4  # uvicorn's exit code; front ends need nothing whose shortage may pass

_ENGINE = "sonant.serving.processes.engine_process"

logger = logging.getLogger(__name__)


class Child:
    """One process, and those that take its place when it dies."""

    def __init__(self, name: str, module: str, setup: Setup) -> None:
        self.name, self.module, self.setup = name, module, setup
        self.process: Process | None = None
        self.deaths = 0
        self._told: signal.Signals | None = None  # the last signal; a process that is only being started gets it too

    async def run(self) -> int | None:
        """Start a process and wait for its end → its exit code; None: none could be started, which may pass, for want
        of memory, processes or files."""
        setup = replace(self.setup, restarts=self.deaths)
        command = (sys.executable, "-m", self.module)
        pipe = asyncio.subprocess.PIPE
        try:  # A session of its own: what is typed at a terminal is for the launcher alone.
            process = await asyncio.create_subprocess_exec(*command, stdin=pipe, start_new_session=True)
        except OSError as e:
            logger.error("no process can be started for %s: %s", self.name, e)
            return None
        self.process = process
        if self._told is not None:
            self.tell(self._told)
        assert process.stdin is not None
        with suppress(ConnectionError):
            process.stdin.write(setup.to_json() + b"\n")
            await process.stdin.drain()
        return await process.wait()

    def tell(self, what: signal.Signals) -> None:
        self._told = what
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(what)


class Launcher:
    def __init__(self, setup: Setup, workers: int) -> None:
        self.setup = setup
        each = setup.each
        self.engines = [
            Child("the engine" if len(each) == 1 else f"the engine of {own.folder.name}", _ENGINE, own) for own in each
        ]
        self.front_ends = [
            Child(f"front end {n}", "sonant.serving.processes.front_end_process", setup) for n in range(workers)
        ]
        self.exit_code = 0
        self._signals = 0
        self._closing = asyncio.Event()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for what in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(what, self._on_signal)
        engines = [asyncio.create_task(self._keep(child)) for child in self.engines]
        front_ends = [asyncio.create_task(self._keep(child)) for child in self.front_ends]
        announced = asyncio.create_task(self._announce())
        await self._closing.wait()
        announced.cancel()
        await self._end(self.front_ends, front_ends, self.setup.serving.drain_s + _GRACE_S)
        await self._end(self.engines, engines, _GRACE_S)
        return self.exit_code

    async def _announce(self) -> None:
        """Log where the page is, as soon as it can be reached."""
        address = page_address(self.setup.host, self.setup.port)
        reached = urlsplit(address)
        while True:
            with suppress(OSError):
                _, writer = await asyncio.open_connection(reached.hostname, reached.port)
                writer.close()
                break
            await asyncio.sleep(0.05)
        logger.info("the page is at %s, with %d front ends; the engine is loading", address, len(self.front_ends))

    def _on_signal(self) -> None:
        self._signals += 1
        self._closing.set()
        if self._signals > 1:  # Front ends count too: their second signal ends them at once.
            for child in self.front_ends:
                child.tell(signal.SIGTERM)

    async def _end(self, children: list[Child], tasks: list[asyncio.Task[None]], within_s: float) -> None:
        for child in children:
            child.tell(signal.SIGTERM)
        _, late = await asyncio.wait(tasks, timeout=within_s)
        for child in children:
            child.tell(signal.SIGKILL)
        if late:
            logger.warning("%d processes did not end in %g s and were killed", len(late), within_s)
            await asyncio.wait(late)

    async def _keep(self, child: Child) -> None:
        failures = 0
        while not self._closing.is_set():
            began_s = time.monotonic()
            code = await child.run()
            if code is not None and child.process is not None:
                child.deaths += 1
                forget_process(self.setup.metrics, child.process.pid)
            if self._closing.is_set():
                return
            if code == EXIT_ERROR:  # The process has said what is wrong, and would fail again.
                self.exit_code = EXIT_ERROR
                self._closing.set()
                return
            steady = time.monotonic() - began_s >= (_STEADY_S if code is not None and code <= 0 else _START_S)
            failures = 0 if steady else failures + 1
            if code == _STARTUP_FAILED and failures >= _MOST_FAILURES:
                logger.error("%s failed at its start %d times in a row, and would again", child.name, failures)
                self.exit_code = EXIT_ERROR
                self._closing.set()
                return
            pause_s = _PAUSES_S[min(failures, len(_PAUSES_S) - 1)]
            logger.error("%s ended (%s); starting it again in %g s", child.name, _how(code), pause_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._closing.wait()


def _how(code: int | None) -> str:
    if code is None:
        return "it was not started"
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
