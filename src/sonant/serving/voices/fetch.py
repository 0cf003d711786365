"""Fetches reference clips by URL, from hosts that the operator has named, and from no others.

A server that fetches can be aimed at what only it can reach. So: the host must be on the list, exactly; its name is
resolved once, and the connection goes to the address that was checked; addresses that are not public are refused
unless the list names that very address; there are no redirects, no proxies from the environment and no credentials;
bytes and seconds are limited.
"""

from __future__ import annotations

import http.client
import ipaddress
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from sonant.errors import BadAudio, ConfigError

MAX_BYTES = 16 << 20
MAX_S = 10.0
_SHOWN_CHARS = 100  # of an address that a client sent
_PORTS = {"http": 80, "https": 443}
_PLAIN_URL = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+(/[!-\[\]-~]*)?")  # visible ASCII, no backslash, no user@
_EMBEDDING = tuple(map(ipaddress.ip_network, ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "::/96")))

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class ClipUrl:
    scheme: str
    host: str
    port: int
    path: str


class ClipFetcher:
    def __init__(self, allowed: Iterable[str], max_bytes: int = MAX_BYTES, max_s: float = MAX_S) -> None:
        """`allowed`: HOST for its usual ports, or HOST:PORT."""
        self.max_bytes, self.max_s = max_bytes, max_s
        self.allowed = frozenset(_checked_entry(entry) for entry in allowed)

    def fetch(self, url: str) -> bytes:
        """The clip's bytes, or `BadAudio`. Blocks: call from a worker thread."""
        target = self._target(url)
        deadline_s = time.monotonic() + self.max_s
        addresses = self._resolve(target)
        problem: OSError | None = None
        for address in addresses:
            try:
                sock = socket.create_connection((str(address), target.port), deadline_s - time.monotonic())
            except (OSError, ValueError) as e:
                problem = e if isinstance(e, OSError) else TimeoutError("time is up")
                continue
            return self._read(target, sock, deadline_s)
        raise BadAudio(f"ref_audio: {target.host} cannot be reached: {problem}")

    def _target(self, url: str) -> ClipUrl:
        if not self.allowed:
            raise BadAudio("ref_audio is an address; fetching is off, send the clip itself as base64 or a data: URI")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise BadAudio("ref_audio is not a valid address") from None
        if not _PLAIN_URL.fullmatch(url) or not parts.hostname:
            raise BadAudio("ref_audio must be a plain http or https address, without a user name or odd characters")
        host, usual = parts.hostname.lower(), _PORTS[parts.scheme]
        entry = _shown(host) if port in (None, usual) else f"{_shown(host)}:{port}"
        if entry not in self.allowed and f"{_shown(host)}:{port or usual}" not in self.allowed:
            shown = entry[:_SHOWN_CHARS]
            raise BadAudio(f"ref_audio: this server does not fetch from {shown}; send the clip itself as base64")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return ClipUrl(parts.scheme, host, port or usual, path)

    def _resolve(self, target: ClipUrl) -> list[Address]:
        """All addresses of the host. Raises `BadAudio` unless we may connect to each of them."""
        try:
            found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except OSError:
            raise BadAudio(f"ref_audio: no address is known for {target.host}") from None
        addresses = [ipaddress.ip_address(str(info[4][0]).partition("%")[0]) for info in found]
        for address in addresses:
            if not _public(address) and not self._named(address, target.port):
                raise BadAudio(f"ref_audio: {target.host} has an address that is not public; it is not fetched from")
        return addresses

    def _named(self, address: Address, port: int) -> bool:
        shown = _shown(str(address))
        return f"{shown}:{port}" in self.allowed or (port in _PORTS.values() and shown in self.allowed)

    def _read(self, target: ClipUrl, sock: socket.socket, deadline_s: float) -> bytes:
        try:
            if target.scheme == "https":
                tls = ssl.create_default_context()
                sock = tls.wrap_socket(sock, server_hostname=target.host, do_handshake_on_connect=False)
            with _cut_at(deadline_s, sock):
                if isinstance(sock, ssl.SSLSocket):
                    sock.do_handshake()
                data = self._ask(target, sock)
            if time.monotonic() >= deadline_s:
                raise TimeoutError  # the cut may look like the end of a body whose length is unknown
            return data
        except (OSError, http.client.HTTPException, ValueError) as e:
            late = time.monotonic() >= deadline_s
            if isinstance(e, BadAudio) and not late:
                raise  # It says what is wrong already, and is a ValueError too.
            why = f"it took more than {self.max_s:g} s" if late else f"{type(e).__name__}: {e}"
            raise BadAudio(f"ref_audio could not be fetched from {target.host}: {why}") from None
        finally:
            sock.close()

    def _ask(self, target: ClipUrl, sock: socket.socket) -> bytes:
        connection = http.client.HTTPConnection(target.host, target.port)
        connection.sock = sock  # connected already, to the address that was checked
        connection.request("GET", target.path, headers={"accept": "audio/*", "accept-encoding": "identity"})
        response = connection.getresponse()
        if response.status != 200:
            hint = "; redirects are not followed" if 300 <= response.status < 400 else ""
            raise BadAudio(f"ref_audio: {target.host} answered {response.status}{hint}")
        if response.getheader("content-encoding", "identity") != "identity":
            raise BadAudio(f"ref_audio: {target.host} sent it compressed, which was not asked for")
        data = response.read(self.max_bytes + 1)
        if len(data) > self.max_bytes:
            raise BadAudio(f"ref_audio: the clip is larger than {self.max_bytes:,} bytes")
        if response.length:
            raise http.client.IncompleteRead(data, response.length)
        if not data:
            raise BadAudio(f"ref_audio: {target.host} sent nothing")
        return data


def is_address(given: str) -> bool:
    return given[:8].lower().startswith(("http://", "https://"))


@contextmanager
def _cut_at(deadline_s: float, sock: socket.socket) -> Iterator[None]:
    """Cut the connection then: a peer that sends a byte a second never exceeds the timeout of a single read."""
    clock = threading.Timer(max(0.0, deadline_s - time.monotonic()), _cut, [sock])
    clock.daemon = True
    clock.start()
    try:
        yield
    finally:
        clock.cancel()


def _cut(sock: socket.socket) -> None:
    with suppress(OSError):  # it is closed already
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # an SSLSocket's own would take its state from under a read


def _public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return _public(address.ipv4_mapped)
        if any(address in network for network in _EMBEDDING):  # it embeds another address, which may be anybody's
            return False
    return address.is_global and not address.is_multicast


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _checked_entry(entry: str) -> str:
    bad = ConfigError(f"allow_url takes HOST or HOST:PORT, not {entry!r}")
    try:
        parts = urlsplit(f"//{entry}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise bad from None
    if not host or parts.path or parts.query or parts.username is not None or "*" in host:
        raise bad
    return _shown(host.lower()) if port is None else f"{_shown(host.lower())}:{port}"
