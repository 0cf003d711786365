"""What is around a replica's app: uvicorn's server as Ray makes it, and HAProxy as Ray is told to set it up."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http import auto as http
from uvicorn.protocols.websockets import auto as sockets
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from serving.conftest import wait_for
from sonant.serving.cluster.replica_edge import use_own_connections
from sonant.serving.options import ServeOptions


@contextmanager
def served(app: Any, options: ServeOptions) -> Iterator[int]:
    """On a port, by a server that Ray makes in these words, with none of our options."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http, "AutoHTTPProtocol", http.AutoHTTPProtocol)
        patch.setattr(sockets, "AutoWebSocketsProtocol", sockets.AutoWebSocketsProtocol)
        use_own_connections(options)
        config = uvicorn.Config(lambda: app, factory=True, port=0, lifespan="off", access_log=False, log_config=None)
        config.ws_ping_timeout = 0.1  # a clock that runs faster
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        try:
            wait_for(lambda: server.started)
            yield server.servers[0].sockets[0].getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(10)


def test_a_replicas_sockets_have_our_limits_and_pings() -> None:
    heard: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            heard.append(message["text"])
            await asyncio.sleep(0.5)  # It is held back: its answers to pings are not read.
            await send({"type": "websocket.send", "text": "on with it"})

    options = ServeOptions(ws_max_message_bytes=1000, unread_s=0.1)
    with served(app, options) as port, connect(f"ws://127.0.0.1:{port}", ping_interval=None) as client:
        for _ in range(2):
            client.send("hello")
        assert [client.recv(5) for _ in range(2)] == ["on with it"] * 2
        assert client.protocol.extensions == [], "sound is not compressed"
        client.send("x" * 1001)
        with pytest.raises(ConnectionClosed) as closed:
            client.recv(5)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009 and heard == ["hello"] * 2


def test_a_request_that_does_not_come_whole_is_given_up_by_a_replica_too() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass

    with served(app, ServeOptions(receive_s=0.3)) as port, socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(0.1)
        client.sendall(b"POST /v1/audio/speech HTTP/1.1\r\nhost: here\r\ncontent-length: 1000\r\n\r\n{")
        answer, deadline_s = b"", time.monotonic() + 5
        while not answer and time.monotonic() < deadline_s:
            client.sendall(b" ")
            try:
                answer = client.recv(4096)
            except TimeoutError:
                continue
    assert answer.startswith(b"HTTP/1.1 408") and b"request_timeout" in answer
