"""A port that several processes listen on: the kernel shares connections out among them."""

from __future__ import annotations

import socket


def bound(host: str, port: int) -> socket.socket:
    """A socket bound to the port that does not listen yet. While it is open it keeps the port for others like it.

    This is no check that the port is free: a shared port takes one more listener from anybody, see `start_check.py`.
    """
    shared = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    shared.bind((host, port))
    return shared
