"""Turns reference clips into voices: fetches or unpacks them, reads them, and has the engine encode them.

Reading a clip (decoding, resampling) takes a core tens of milliseconds, encoding it takes the engine's time. So few are
read at once, on threads of their own, few may wait, and the same clip for many requests, at once or one after another,
is encoded once.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

from sonant.errors import BadAudio
from sonant.serving.channel.remote_engine import RemoteEngine
from sonant.serving.refused import Refused
from sonant.serving.voices.fetch import ClipFetcher, is_address
from sonant.types import Samples
from sonant.voice import Voice

MAX_WAITING = 16  # clips; each may be megabytes of text
_READERS = 2
_FETCHERS = 4
_KEPT = 32  # cached voices, by their clip
_RETRY_S = 2.0


class Clips:
    """Used on the event loop."""

    def __init__(self, allow_url: tuple[str, ...], refused: Callable[[Refused], None]) -> None:
        """`refused` is called with every refusal, before it is raised."""
        self._refused = refused
        self._fetcher = ClipFetcher(allow_url)
        self._fetchers = ThreadPoolExecutor(_FETCHERS, thread_name_prefix="sonant-fetch")
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="sonant-clip")
        self._voices: OrderedDict[str, asyncio.Future[Voice]] = OrderedDict()
        self._waiting = 0

    async def voice(self, engine: RemoteEngine, given: str, text: str | None) -> Voice:
        """The voice of a clip that came with a request: an address, a data: URI or base64."""
        with self._place():
            data: str | bytes = given
            if is_address(given):
                loop = asyncio.get_running_loop()
                data = await loop.run_in_executor(self._fetchers, self._fetcher.fetch, given)
            made = await self._made(engine, data, text)
            return await asyncio.shield(made)  # others may wait for it too

    async def _made(self, engine: RemoteEngine, data: str | bytes, text: str | None) -> asyncio.Future[Voice]:
        """The clip's voice, if it is known or being encoded already; else it is encoded from now on."""
        loop = asyncio.get_running_loop()
        while True:
            key, samples = await loop.run_in_executor(self._readers, self._read, engine, data, text)
            known = self._voices.get(key)
            if known is None and samples is not None:
                known = self._voices[key] = asyncio.ensure_future(engine.encode(samples, text))
                known.add_done_callback(partial(self._keep, key))
            if known is not None:  # else the voice that the reader found was dropped since, and the clip is read anew
                self._voices.move_to_end(key)
                return known

    async def upload(self, engine: RemoteEngine, data: bytes, text: str | None, name: str) -> Voice:
        """The voice of a clip that is to be kept under a name."""
        with self._place():
            loop = asyncio.get_running_loop()
            samples = await loop.run_in_executor(self._readers, engine.read_clip, data, text)
            return await engine.encode(samples, text, name)

    async def check(self, read: Callable[[], object]) -> None:
        """Have `read` raise what is wrong with a recording that nobody is to speak like."""
        with self._place():
            await asyncio.get_running_loop().run_in_executor(self._readers, read)

    def close(self) -> None:
        self._fetchers.shutdown(wait=False, cancel_futures=True)
        self._readers.shutdown(wait=False, cancel_futures=True)

    @contextmanager
    def _place(self) -> Iterator[None]:
        if self._waiting >= MAX_WAITING:
            message = f"{self._waiting} reference clips are being read already; try again, or upload the voice once"
            refusal = Refused(429, "too_many_clips", message, retry_s=_RETRY_S)
            self._refused(refusal)
            raise refusal
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    def _read(self, engine: RemoteEngine, given: str | bytes, text: str | None) -> tuple[str, Samples | None]:
        """The clip's key, and its samples unless `_voices` has that key already. Runs on a reader's thread."""
        data = unpacked(given) if isinstance(given, str) else given
        key = hashlib.sha256(f"{id(engine)}\0{text or ''}\0".encode() + data).hexdigest()
        return key, None if key in self._voices else engine.read_clip(data, text)

    def _keep(self, key: str, made: asyncio.Future[Voice]) -> None:
        if made.cancelled() or made.exception() is not None:
            self._voices.pop(key, None)
        while len(self._voices) > _KEPT:
            self._voices.popitem(last=False)


def unpacked(given: str) -> bytes:
    """The bytes of a data: URI or of plain base64. Clients cannot name files of the server."""
    if given.startswith("file:"):
        raise BadAudio("ref_audio is a file address; send the clip itself as base64 or a data: URI")
    if given.startswith("data:"):
        head, comma, given = given.partition(",")
        if not comma or not head.endswith(";base64"):
            raise BadAudio("ref_audio is a data: URI without ;base64,")
    try:
        return base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError) as e:
        raise BadAudio(f"ref_audio is not base64: {e}") from None
