"""Keeps a front end connected to the engine's process, and tells whether there is an engine or why there is none."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from pathlib import Path

from sonant.errors import EngineClosed
from sonant.models.prompt import Prompter
from sonant.serving.channel import messages as m
from sonant.serving.channel.connection import BadChannel, Connection
from sonant.serving.channel.remote_engine import RemoteEngine
from sonant.serving.observability.engine_report import EngineReport

_RETRY_S = 0.05
_TURNED_AWAY_S = 1.0
_GREETING_S = 2.0
LOADING = "loading"
FAILED = "it failed and is being loaded again"
DRAINING = "the server is shutting down"

logger = logging.getLogger(__name__)


class EngineLink:
    """Used on one event loop, from `start` to `close`."""

    def __init__(self, path: Path, prompter: Prompter) -> None:
        self.path, self.prompter = path, prompter
        self.trouble: str | None = LOADING  # why no requests are taken; None: they are
        self.restarts = 0  # of the engine, since the server was started
        self._engine: RemoteEngine | None = None
        self._welcomed, self._ended = asyncio.Event(), asyncio.Event()
        self._turned_away = False  # the last connection ended before its welcome
        self._closing = False
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Wait for an engine that is there already: a new front end must not tell clients that there is none."""
        self._task = asyncio.create_task(self._keep(), name="engine link")
        self._task.add_done_callback(_tell_failure)
        if self.path.exists():
            with suppress(TimeoutError):
                async with asyncio.timeout(_GREETING_S):
                    await self._welcomed.wait()

    @property
    def ready(self) -> bool:
        return self._engine is not None and self.trouble is None

    @property
    def engine(self) -> RemoteEngine:
        engine = self._engine
        if engine is None or self.trouble is not None:
            raise EngineClosed(f"the engine is not ready: {self.trouble}; try again in a moment")
        return engine

    @property
    def loaded(self) -> RemoteEngine | None:
        """The engine, even while it takes no more requests."""
        return self._engine

    async def report(self) -> EngineReport | None:
        """The engine's figures; None while there is none."""
        try:
            return None if self._engine is None else await self._engine.report()
        except EngineClosed:
            return None

    def drain(self) -> None:
        """Take no more requests; those in flight go on."""
        self._closing, self.trouble = True, DRAINING

    def cut_off(self) -> None:
        """Tell whoever waits for the engine that nothing more will come."""
        if self._engine is not None:
            self._engine.lost(EngineClosed(f"the speech was cut off: {DRAINING}"))

    async def close(self) -> None:
        self.drain()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if self._connection is not None:
            self._connection.hang_up()

    async def _keep(self) -> None:
        """Keep trying to connect: the engine's process listens only while its engine is ready."""
        loop = asyncio.get_running_loop()
        while True:
            self._ended.clear()
            connection = Connection(m.FromEngine, self._take, self._lost)
            try:
                await loop.create_unix_connection(lambda c=connection: c, str(self.path))  # type: ignore[misc]
            except OSError:
                await asyncio.sleep(_RETRY_S)
                continue
            self._connection = connection
            connection.send(m.Hello(m.PROTOCOL, os.getpid()))
            await self._ended.wait()
            self._connection = None
            # An engine that hangs up before its welcome, being of another version, would be asked thousands of times
            # a second, and each time it would say so in its log.
            await asyncio.sleep(_TURNED_AWAY_S if self._turned_away else _RETRY_S)

    def _take(self, message: m.Message) -> None:
        if self._engine is not None:
            return self._engine.remote.take(message)
        if not isinstance(message, m.Welcome):
            raise BadChannel(f"the first message must be a welcome, not {type(message).__name__}")
        assert self._connection is not None
        self._engine = RemoteEngine(self.prompter, self._connection, message)
        self.restarts = message.restarts
        self._welcomed.set()
        if not self._closing:
            self.trouble = None
        return None

    def _lost(self, error: Exception | None) -> None:
        engine, self._engine = self._engine, None
        self._turned_away = engine is None
        if engine is not None:
            self.restarts += 1
            if not self._closing:
                self.trouble = FAILED
                logger.error("the engine is gone (%s); waiting for another", error or "it ended")
            engine.lost(EngineClosed("the engine failed while it spoke; try again in a moment"))
        self._ended.set()


def _tell_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.critical("this front end looks for no engine any more", exc_info=task.exception())
