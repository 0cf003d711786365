"""A port that several processes listen on: the kernel shares connections out among them."""

from __future__ import annotations

import socket


def bound(host: str, port: int) -> socket.socket:
    """A socket on it that does not listen yet. Whoever holds one keeps the port for others who come.

    Not a check: a port that is shared takes one more listener from whoever asks, see `start_check.py`.
    """
    shared = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    shared.bind((host, port))
    return shared
