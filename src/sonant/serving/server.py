"""Runs the app until it is told to stop, and then lets running requests finish.

The first SIGTERM (or SIGINT) begins the drain: the port stays open, so that new requests get a 503 instead of a refused
connection, and running requests go on for at most `drain_s`. Those that are left then are told that they are cut off,
and the server ends. A second signal ends it at once.
"""

from __future__ import annotations

import logging
import time
from types import FrameType

import uvicorn
from fastapi import FastAPI

from sonant.serving.idle_memory import IdleMemory, share_arenas
from sonant.serving.limits.connection import connection_type
from sonant.serving.limits.socket_connection import socket_type
from sonant.serving.observability.log_format import BrokenStreams, WithoutAccesses
from sonant.serving.options import ServeOptions
from sonant.serving.service import SpeechService

logger = logging.getLogger(__name__)

_LEAVE_S = 2  # for connections to close after the drain
_KEEP_ALIVE_S = 75  # longer than proxies keep connections, and than an agent is silent between two utterances


class DrainingServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, service: SpeechService) -> None:
        super().__init__(config)
        self.service = service
        self.signalled_s: float | None = None  # when the first signal came
        self.cutting_off = False
        self.idle_memory = IdleMemory()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Unlike in uvicorn, the signal is not raised again at the end: a drained server ends with 0.
        if self.signalled_s is None:
            self.signalled_s = time.monotonic()
        else:
            self.end()

    def end(self) -> None:
        """End at once; may be called from any thread."""
        self.should_exit = self.force_exit = True

    async def on_tick(self, counter: int) -> bool:
        self.idle_memory.look(self.service.in_flight.running, self.service.bodies.held_bytes, time.monotonic())
        if self.signalled_s is not None:
            self._drain(self.signalled_s)
        return await super().on_tick(counter)

    def _drain(self, signalled_s: float) -> None:
        work, drain_s = self.service.in_flight, self.service.options.drain_s
        if not work.draining.is_set():
            logger.info("draining: %d running, %g s at most", work.running, drain_s)
            self.service.drain()
            work.draining.set()
        elif not work.running or self.cutting_off:
            self.should_exit = True
        elif time.monotonic() - signalled_s >= drain_s:
            logger.warning("cutting off %d running after %g s", work.running, drain_s)
            self.cutting_off = True  # The server ends at the next tick; until then clients can be told.
            self.service.cut_off()


def server_for(app: FastAPI, options: ServeOptions) -> DrainingServer:
    share_arenas()
    config = uvicorn.Config(
        app,
        host=options.host,
        port=options.port,
        log_config=None,  # logging is configured for the whole process
        log_level="info" if options.log_level == "debug" else options.log_level,  # its debug lines show what is sent
        access_log=False,  # the request log says more
        http=connection_type(options),
        ws=socket_type(options),
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_LEAVE_S,
    )
    for unwanted in (WithoutAccesses(), BrokenStreams()):
        logging.getLogger("uvicorn.error").addFilter(unwanted)
    return DrainingServer(config, app.state.service)
