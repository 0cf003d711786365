"""Keeps an engine running: loads it, says when it is ready, and loads it again if its step thread fails."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable

from sonant.engine.engine import Engine
from sonant.errors import EngineClosed
from sonant.serving.warm_up import warm_up

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0


class EngineSupervisor:
    def __init__(self, load: Callable[[], Engine], warm: Callable[[Engine], None] = warm_up) -> None:
        """`warm` is run on each new engine before it is shown to anybody."""
        self._load, self._warm = load, warm
        self._engine: Engine | None = None
        self._closing = threading.Event()
        self.restarts = 0
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

    @property
    def loaded(self) -> Engine | None:
        """The engine for looking at, also while it takes no more requests."""
        return self._engine

    def drain(self) -> None:
        """Take no more requests; those in flight go on."""
        self._closing.set()
        self.trouble = "the server is shutting down"

    def close(self) -> None:
        """Cut off what is still in flight."""
        self.drain()
        engine = self._engine
        if engine is not None:
            engine.close()

    def _keep(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._closing.is_set():
            try:
                engine = self._warmed()
            except Exception as e:
                logger.exception("the engine could not be loaded; trying again in %.1f s", pause_s)
                self.trouble = f"it could not be loaded ({type(e).__name__})"
                self._closing.wait(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                continue
            if self._closing.is_set():
                return engine.close()
            pause_s = _FIRST_PAUSE_S
            self._engine, self.trouble = engine, None
            if self._closing.is_set():  # Whoever closed it since the last look saw no engine to close.
                self.drain()
                return engine.close()
            engine.join()
            del engine  # This name would hold the one that failed until another is loaded.
            if not self._closing.is_set():
                self.trouble, self._engine = "it failed and is being loaded again", None
                self.restarts += 1
                logger.error("the engine failed; loading it again")
        return None

    def _warmed(self) -> Engine:
        gc.unfreeze()
        gc.collect()  # An engine that failed gives its memory back before another takes as much.
        engine = self._load()
        try:
            self._warm(engine)
        except BaseException:
            engine.close()
            raise
        # All that is alive now stays alive. A collector that walks over it holds everybody up for a fifth of a second.
        gc.collect()
        gc.freeze()
        return engine
