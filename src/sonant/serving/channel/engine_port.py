"""The engine's end of the channel: a Unix socket, one thread for all front ends, and one message a step for each.

Front ends are not trusted: a malformed message ends its connection, a request that cannot be met is answered with an
error, and the rows and places that a front end held are given back when it is gone. The step thread only appends to a
queue here; the channel's thread encodes and writes, except for steps with a first sound, which the step thread sends
itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from sonant.engine.engine import Engine
from sonant.serving.channel.front_end_peer import FrontEndPeer
from sonant.serving.limits.admission import Admission
from sonant.serving.observability.engine_report import EngineReporter

MAX_ENCODING = 32  # clips that may wait to be encoded
_HAND_OVER_S = 0.001  # how long the step thread waits for a first sound to be sent
_CLOSE_S = 2.0

logger = logging.getLogger(__name__)


class EnginePort:
    """Open from its construction until `close`."""

    def __init__(self, engine: Engine, path: Path, admission: Admission, restarts: int = 0) -> None:
        """`restarts`: how many engines failed before this one."""
        self.engine, self.path, self.admission, self.restarts = engine, path, admission, restarts
        self.reporter = EngineReporter(engine)
        self.peers: set[FrontEndPeer] = set()
        self.broken = 0  # connections that ended because of what came over them
        self._encoding = 0
        self._voices = ThreadPoolExecutor(1, thread_name_prefix="sonant-voice")
        self._recorder = ThreadPoolExecutor(1, thread_name_prefix="sonant-profile")
        self._to_flush = self._flush_wanted = False
        self._flushed = threading.Event()
        self.loop = _event_loop()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._run, name="sonant-channel", daemon=True)
        opened: Future[None] = Future()
        self.loop.call_soon(self._open, opened)
        self._thread.start()
        try:
            opened.result()
        except BaseException:
            self._stop()  # else the thread would keep an engine that nobody can reach
            raise
        engine.loop.after_delivery = self._flush_soon

    def close(self) -> None:
        """Send front ends what still waits for them, and hang up."""
        if self._thread.is_alive():
            try:
                asyncio.run_coroutine_threadsafe(self._close(), self.loop).result(2 * _CLOSE_S)
            except Exception:  # An engine that is loaded again must not be kept from it.
                logger.warning("front ends were not hung up on in order", exc_info=True)
            self._stop()
        self._voices.shutdown(wait=False, cancel_futures=True)
        self._recorder.shutdown(wait=False, cancel_futures=True)

    def _stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    # The step thread

    def mark(self) -> None:
        """Note that a peer has something to be sent once the step's results have been delivered."""
        self._to_flush = True

    def _flush_soon(self, at_once: bool) -> None:
        """`at_once`: send from this thread, since the hop to the channel's thread would delay a first sound. If this
        thread cannot, it waits for the other, which would else wait for the GIL until the next launch."""
        if not self._to_flush:
            return
        self._to_flush = False
        if at_once and not [peer for peer in list(self.peers) if not peer.hand_over()]:
            return
        self._flush_wanted = True
        self._flushed.clear()
        self.loop.call_soon_threadsafe(self._flush)
        if at_once:
            self._flushed.wait(_HAND_OVER_S)

    # The channel's thread

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    def _open(self, opened: Future[None]) -> None:
        async def listen() -> None:
            self.path.unlink(missing_ok=True)
            self._server = await self.loop.create_unix_server(self._peer, str(self.path))
            os.chmod(self.path, 0o600)

        def done(task: asyncio.Task[None]) -> None:
            error = task.exception()
            opened.set_result(None) if error is None else opened.set_exception(error)

        self.loop.create_task(listen()).add_done_callback(done)

    def _peer(self) -> Any:
        peer = FrontEndPeer(self)
        self.peers.add(peer)
        return peer.connection

    def _flush(self) -> None:
        self._flush_wanted = False
        for peer in self.peers:
            peer.flush()
        self._flushed.set()

    def before_message(self) -> None:
        """Send what has been made before handling what may be many messages."""
        if self._flush_wanted:
            self._flush()

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.path.unlink(missing_ok=True)
        self._flush()
        for peer in list(self.peers):
            peer.connection.hang_up()
        for _ in range(int(_CLOSE_S / 0.01)):
            if not self.peers:
                return
            await asyncio.sleep(0.01)
        for peer in list(self.peers):
            peer.connection.break_off()

    # What peers ask for

    def gone(self, peer: FrontEndPeer, error: Exception | None) -> None:
        self.peers.discard(peer)
        if error is not None:
            self.broken += 1
            logger.warning("a front end was cut off: %s", error)

    def encode_voice(self, samples: Any, text: str | None, name: str) -> Future[Any] | None:
        """None: too many clips wait already."""
        if self._encoding >= MAX_ENCODING:
            return None
        self._encoding += 1
        made = self._voices.submit(self.engine.encode, samples, text, name)
        made.add_done_callback(self._encoded)
        return made

    def _encoded(self, _: Future[Any]) -> None:
        def count() -> None:
            self._encoding -= 1

        with suppress(RuntimeError):  # the loop is closed: nobody waits for an answer any more
            self.loop.call_soon_threadsafe(count)

    def record(self, steps: int, timeout_s: float, stacks: bool, graphs: bool) -> Future[tuple[int, Path]]:
        from sonant.engine.step_profiler import record_to_file

        return self._recorder.submit(
            record_to_file, self.engine, steps, timeout_s=timeout_s, stacks=stacks, graphs=graphs
        )

    def config_json(self) -> bytes:
        return msgspec.json.encode(self.engine.config)


def _event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed: the step thread waits for the GIL while the channel's thread holds it."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
