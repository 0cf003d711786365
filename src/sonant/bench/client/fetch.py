"""Fetches a page of the server beside the load: its models or its metrics."""

from __future__ import annotations

import time
import urllib.request
from http.client import HTTPException, HTTPResponse

from sonant.bench.client.target import Target

_TIMEOUT_S = 5.0  # for each answer of the socket, and for the page as a whole
_MOST_BYTES = 64 << 20
_PIECE_BYTES = 1 << 16


def fetch(target: Target, path: str) -> bytes | None:
    """The page's body; None if there is no such page, no HTTP server, or no end of the page.

    Like the load this goes straight to the server, whatever proxy the environment names.
    """
    request = urllib.request.Request(f"{target.address.root}{path}")
    if target.api_key:
        request.add_header("Authorization", f"Bearer {target.api_key}")
    ways = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=target.tls)
    try:
        with urllib.request.build_opener(*ways).open(request, timeout=_TIMEOUT_S) as response:
            return _whole(response)
    except (OSError, HTTPException):
        return None


def _whole(response: HTTPResponse) -> bytes | None:
    """The body, unless it is too long or too slow: a server that drips must not keep the measurement waiting."""
    deadline_s, body = time.monotonic() + _TIMEOUT_S, bytearray()
    while piece := response.read1(_PIECE_BYTES):
        body += piece
        if len(body) > _MOST_BYTES or time.monotonic() > deadline_s:
            return None
    if response.length:  # it broke off
        return None
    return bytes(body)
