"""Clips by address: only from hosts that were allowed, and never from addresses that only the server can reach."""

from __future__ import annotations

import io
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import soundfile

from clips import reference_clip
from serving.conftest import Serve
from sonant.errors import BadAudio, ConfigError
from sonant.serving.voices.fetch import ClipFetcher


class Files(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.paths.append(self.path)  # type: ignore[attr-defined]
        if self.path == "/redirect":
            self.send_response(302)
            self.send_header("location", "/clip.wav")
            self.end_headers()
        elif self.path == "/endless":
            self.send_response(200)
            self.end_headers()
            while not self.wfile.closed:
                self.wfile.write(b"x" * 65536)
        elif self.path == "/drip":
            self.send_response(200)
            while not self.wfile.closed:
                self.wfile.write(b"x")
                time.sleep(0.05)
        elif self.path == "/half":
            self.send_response(200)
            self.send_header("content-length", "20")
            self.end_headers()
            self.wfile.write(b"half")
        elif self.path.startswith("/clip.wav"):
            data = io.BytesIO()
            soundfile.write(data, *reference_clip(), format="WAV")
            self.send_response(200)
            self.end_headers()
            self.wfile.write(data.getvalue())
        else:
            self.send_error(404)

    def log_message(self, *_: object) -> None:
        return

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            return  # the fetcher hung up, as it should


@contextmanager
def file_server(tls: ssl.SSLContext | None = None) -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Files)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.paths = []  # type: ignore[attr-defined]
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def files() -> Iterator[ThreadingHTTPServer]:
    with file_server() as server:
        yield server


@pytest.fixture
def files_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    """A server whose certificate this process trusts."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed, which makes the certificate")
    own, key = tmp_path / "own.pem", tmp_path / "key.pem"
    make = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    named = ("-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run(["openssl", *make, *named, "-keyout", key, "-out", own], check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(own))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(own, key)
    with file_server(tls) as server:
        yield server


def address(files: ThreadingHTTPServer) -> str:
    return f"127.0.0.1:{files.server_port}"


@pytest.mark.parametrize(
    ("path", "why"), [("/nothing", "answered 404"), ("/redirect", "answered 302; redirects are not followed")]
)
def test_what_a_host_answered_is_told_in_one_sentence(files: ThreadingHTTPServer, path: str, why: str) -> None:
    with pytest.raises(BadAudio) as refused:
        ClipFetcher([address(files)]).fetch(f"http://{address(files)}{path}")
    assert str(refused.value) == f"ref_audio: 127.0.0.1 {why}"


def test_a_named_host_is_fetched_from(files: ThreadingHTTPServer) -> None:
    fetcher = ClipFetcher([address(files)])
    assert fetcher.fetch(f"http://{address(files)}/clip.wav?a=b")[:4] == b"RIFF"
    assert files.paths == ["/clip.wav?a=b"]  # type: ignore[attr-defined]


def test_nothing_is_fetched_unless_it_was_named(files: ThreadingHTTPServer) -> None:
    url = f"http://{address(files)}/clip.wav"
    for allowed in ([], ["127.0.0.1"], ["example.com"], [f"127.0.0.2:{files.server_port}"]):
        with pytest.raises(BadAudio):
            ClipFetcher(allowed).fetch(url)
    assert files.paths == []  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "url",
    [
        "http://user@{a}/clip.wav",
        "http://example.com@{a}/clip.wav",
        "http://{a}\\@example.com/clip.wav",
        "http://{a} /clip.wav",
        "http://{a}/clip.wav\r\nx: y",
        "http://{a}:80/clip.wav",
        "http://{a}@/",
        "http:///clip.wav",
        "ftp://{a}/clip.wav",
        "http://[::1/clip.wav",
        "http://localhost:{p}/clip.wav",
        "http://2130706433:{p}/clip.wav",
        "http://0x7f.1:{p}/clip.wav",
    ],
)
def test_odd_addresses_are_refused_before_anything_is_sent(files: ThreadingHTTPServer, url: str) -> None:
    with pytest.raises(BadAudio):
        ClipFetcher([address(files)]).fetch(url.format(a=address(files), p=files.server_port))
    assert files.paths == []  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "inside",
    ["127.0.0.1", "10.1.2.3", "192.168.0.1", "169.254.169.254", "0.0.0.0", "100.64.0.1", "::1", "fe80::1", "fd00::1",
     "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "224.0.0.1"],
)  # fmt: skip
def test_a_name_that_leads_inside_is_refused(monkeypatch: pytest.MonkeyPatch, inside: str) -> None:
    family = socket.AF_INET6 if ":" in inside else socket.AF_INET
    found = [(family, socket.SOCK_STREAM, 6, "", ("93.184.216.34", 80)), (family, 1, 6, "", (inside, 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("it connected"))
    with pytest.raises(BadAudio, match="not public"):
        ClipFetcher(["media.example"]).fetch("http://media.example/clip.wav")


def test_the_name_is_resolved_once_and_the_checked_address_is_used(
    files: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server that would answer differently the second time is not asked twice."""
    asked = []

    def resolve(host: str, port: int, *_: object, **__: object) -> list[object]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    port = files.server_port
    fetcher = ClipFetcher([f"media.example:{port}", f"127.0.0.1:{port}"])  # the loopback address must be allowed too
    with monkeypatch.context() as patch:
        patch.setattr("sonant.serving.voices.fetch.socket.getaddrinfo", resolve)
        real = socket.create_connection
        patch.setattr("sonant.serving.voices.fetch.socket.create_connection", lambda to, t: _to(real, to, t, asked))
        assert fetcher.fetch(f"http://media.example:{port}/clip.wav")[:4] == b"RIFF"
    assert asked == ["media.example", "connect 127.0.0.1"]


def _to(real: object, to: tuple[str, int], timeout: float, asked: list[str]) -> socket.socket:
    asked.append(f"connect {to[0]}")
    sock = socket.socket()
    sock.settimeout(timeout)
    sock.connect(to)
    return sock


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/redirect", "redirects"),
        ("/missing", "404"),
        ("/endless", "larger"),
        ("/drip", "more than"),
        ("/half", "16 more"),
    ],
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_limits_hold(request: pytest.FixtureRequest, scheme: str, path: str, why: str) -> None:
    files = request.getfixturevalue("files" if scheme == "http" else "files_over_tls")
    fetcher = ClipFetcher([address(files)], max_bytes=1 << 20, max_s=0.5)
    began = time.monotonic()
    with pytest.raises(BadAudio, match=why):
        fetcher.fetch(f"{scheme}://{address(files)}{path}")
    assert time.monotonic() - began < 3 and len(files.paths) == 1


def test_who_takes_the_handshakes_time_to_no_end_is_cut_off(files_over_tls: ThreadingHTTPServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where, began = f"127.0.0.1:{silent.getsockname()[1]}", time.monotonic()
        with pytest.raises(BadAudio, match="more than"):
            ClipFetcher([where], max_s=0.5).fetch(f"https://{where}/clip.wav")
        assert time.monotonic() - began < 3
    fetcher = ClipFetcher([address(files_over_tls)])
    assert fetcher.fetch(f"https://{address(files_over_tls)}/clip.wav")[:4] == b"RIFF"


@pytest.mark.parametrize("entry", ["", "*", "http://example.com", "example.com/path", "a@b", "host:port", "*.com"])
def test_a_strange_entry_in_the_list_is_an_error_at_start(entry: str) -> None:
    with pytest.raises(ConfigError, match="allow_url"):
        ClipFetcher([entry])


def test_a_clip_by_address_is_cloned_over_http(serve: Serve, files: ThreadingHTTPServer) -> None:
    served = serve("base", allow_url=(address(files),))
    body = {"input": "hello", "seed": 1, "max_frames": 4, "response_format": "pcm"}
    assert served.post(**body, ref_audio=f"http://{address(files)}/clip.wav").status_code == 200
    refused = served.post(**body, ref_audio="http://example.com/clip.wav")
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "invalid_audio"
