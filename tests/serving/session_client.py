"""A client of the WebSocket route that remembers what it was told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from serving.conftest import Served

CONFIG = {"voice": "alloy", "seed": 5, "response_format": "pcm"}
SIX = {"budget_s": 6 * 0.04, "budget_s_per_token": 1e-12}  # an engine's options: six of the toy's frames for each piece


class Client:
    """A client that remembers what it was told."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    def say(self, kind: str, **fields: Any) -> None:
        self.socket.send(json.dumps({"type": kind, **fields}))

    def hear(self, timeout_s: float = 20) -> dict[str, Any] | bytes:
        message = self.socket.recv(timeout_s)
        return message if isinstance(message, bytes) else json.loads(message)

    def until(self, kind: str) -> list[dict[str, Any] | bytes]:
        heard = [self.hear()]
        while isinstance(heard[-1], bytes) or heard[-1]["type"] != kind:
            heard.append(self.hear())
        return heard

    def closed(self, timeout_s: float = 20) -> int:
        """Read to the end → the close code."""
        try:
            while True:
                self.hear(timeout_s)
        except ConnectionClosed as e:
            assert e.rcvd is not None
            return e.rcvd.code


@contextmanager
def session(served: Served, path: str = "", **options: Any) -> Iterator[Client]:
    url = served.url.replace("http://", "ws://") + "/v1/audio/speech/stream" + path
    with connect(url, compression=None, **options) as socket:
        yield Client(socket)


def events(heard: list[dict[str, Any] | bytes]) -> list[dict[str, Any]]:
    return [m for m in heard if isinstance(m, dict)]


def sound(heard: list[dict[str, Any] | bytes]) -> bytes:
    return b"".join(m for m in heard if isinstance(m, bytes))


def files(heard: list[dict[str, Any] | bytes]) -> list[bytes]:
    """The binary frames between each audio.start and its audio.done, joined."""
    out: list[bytes] = []
    for message in heard:
        if isinstance(message, bytes):
            out[-1] += message
        elif message["type"] == "audio.start":
            out.append(b"")
    return out
