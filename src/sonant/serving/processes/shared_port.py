"""A port that several processes listen on: the kernel shares connections out among them."""

from __future__ import annotations

import socket


def bound(host: str, port: int) -> socket.socket:
    """A socket bound to the port that does not listen yet. While it is open it keeps the port for others like it.

    Of a name's addresses it is the first of IPv4, or of IPv6 if there is no other. This is no check that the port is
    free: a shared port takes one more listener from anybody, see `start_check.py`.
    """
    found = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)
    family, _, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    shared = socket.socket(family, socket.SOCK_STREAM)
    shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    shared.bind(address)
    return shared
