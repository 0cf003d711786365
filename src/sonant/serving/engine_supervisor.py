"""Keeps an engine running in this process: loads it, lets front ends in, and loads it again if it fails."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable
from pathlib import Path

from sonant.collector import freeze_what_is_alive
from sonant.engine.engine import Engine
from sonant.errors import EngineClosed, is_permanent
from sonant.serving.channel.engine_port import EnginePort
from sonant.serving.limits.admission import Admission
from sonant.serving.warm_up import warm_up

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0


class EngineSupervisor:
    def __init__(
        self, load: Callable[[], Engine], path: Path, admission: Admission, warm: Callable[[Engine], None] = warm_up
    ) -> None:
        """`path` is where front ends find the engine; `warm` is run on each new engine before they can."""
        self._load, self._warm, self.path, self.admission = load, warm, path, admission
        self._engine: Engine | None = None
        self._closing = threading.Event()
        self.restarts = 0
        self.fatal: Exception | None = None  # why loading again would be useless: no engine will come
        self.on_fatal: Callable[[], None] = lambda: None
        self.trouble: str | None = "loading"  # why there is no engine now; None: there is one
        self._thread = threading.Thread(target=self._keep, name="sonant-supervisor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def ready(self) -> bool:
        return self._engine is not None and self.trouble is None

    @property
    def engine(self) -> Engine:
        engine = self._engine
        if engine is None or self.trouble is not None:
            raise EngineClosed(f"the engine is not ready: {self.trouble}; try again in a moment")
        return engine

    def drain(self) -> None:
        """Load no other engine; requests in flight go on."""
        self._closing.set()
        self.trouble = "the server is shutting down"

    def close(self) -> None:
        """Cut off what is still in flight."""
        self.drain()
        engine = self._engine
        if engine is not None:
            engine.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _keep(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._closing.is_set():
            try:
                engine, port = self._started()
            except Exception as e:
                if is_permanent(e):
                    return self._give_up(e)
                logger.exception("the engine could not be loaded; trying again in %.1f s", pause_s)
                self.trouble = f"it could not be loaded ({type(e).__name__})"
                self._closing.wait(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                continue
            pause_s = _FIRST_PAUSE_S
            self._serve(engine, port)
            del engine, port  # These names would keep the failed engine alive until another is loaded.
            if not self._closing.is_set():
                self.trouble = "it failed and is being loaded again"
                self.restarts += 1
                logger.error("the engine failed; loading it again")
            self._engine = None
        return None

    def _give_up(self, error: Exception) -> None:
        self.fatal = error
        self.trouble = f"it cannot be loaded: {error}"
        self.on_fatal()

    def _serve(self, engine: Engine, port: EnginePort) -> None:
        """Keep the engine until it ends."""
        self._engine, self.trouble = engine, None
        try:
            if self._closing.is_set():  # Perhaps `close` was called before there was an engine for it to close.
                self.drain()
                engine.close()
            engine.join()
        finally:
            port.close()

    def _started(self) -> tuple[Engine, EnginePort]:
        """A warm engine, and the port at which front ends find it from now on."""
        gc.unfreeze()
        gc.collect()  # An engine that failed gives its memory back before another takes as much.
        engine = self._load()
        try:
            self._warm(engine)
            freeze_what_is_alive()
            return engine, EnginePort(engine, self.path, self.admission, self.restarts)
        except BaseException:
            engine.close()
            raise
