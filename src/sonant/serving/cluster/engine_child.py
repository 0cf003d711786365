"""The engine of a replica: a process of its own, started again when it dies.

The replica's process answers HTTP and has no torch, so that steps never wait for its GIL. If it is killed its engine
ends too, when the pipe by which its settings came is closed.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace

from sonant.errors import ConfigError
from sonant.exit_codes import EXIT_ERROR
from sonant.serving.processes.setup import Setup

_LOOK_S = 0.05
_STEADY_S = 1.0  # a process that has lived so long did not fail at its start
_PAUSES_S = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)  # before it is started again, by how often it failed at its start
_GRACE_S = 5.0

logger = logging.getLogger(__name__)


class EngineChild:
    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.deaths = 0
        self.fatal: str | None = None  # why starting it again would be useless: no engine will come
        self._process: subprocess.Popen[bytes] | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="sonant-engine-child", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def ready(self) -> None:
        """Return once the engine is warm: it does not listen for front ends before. Raise if it cannot be loaded."""
        while not self.setup.channel.exists():
            self.check()
            await asyncio.sleep(_LOOK_S)

    def check(self) -> None:
        if self.fatal is not None:
            raise ConfigError(self.fatal)

    def close(self) -> None:
        self._closing.set()
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
            process.kill()
        if self._thread.is_alive():
            self._thread.join(_GRACE_S)

    def _keep(self) -> None:
        failures = 0
        while not self._closing.is_set():
            began_s = time.monotonic()
            try:
                code: int | None = self._run()
                self.deaths += 1
            except OSError as e:  # Memory, processes or files are short, which may pass.
                code = None
                logger.error("no process can be started for the engine: %s", e)
            if self._closing.is_set():
                return
            if code == EXIT_ERROR:
                self.fatal = "the engine cannot be loaded; it has said why on standard error, in this replica's log"
                return
            failures = 0 if time.monotonic() - began_s >= _STEADY_S else failures + 1
            pause_s = _PAUSES_S[min(failures, len(_PAUSES_S) - 1)]
            how = "was not started" if code is None else f"ended with {code}"
            logger.error("the engine %s; starting it again in %g s", how, pause_s)
            self._closing.wait(pause_s)

    def _run(self) -> int:
        command = [sys.executable, "-m", "sonant.serving.processes.engine_process"]
        # Unbuffered: what could not be written to a process that died would be written, and fail, again at the end.
        with subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, start_new_session=True) as process:
            self._process = process
            if self._closing.is_set():  # `close` may not have seen this process
                process.terminate()
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.write(replace(self.setup, restarts=self.deaths).to_json() + b"\n")
            # Neither `communicate` nor leaving this block: both would close the pipe, which tells the engine to end.
            return process.wait()
