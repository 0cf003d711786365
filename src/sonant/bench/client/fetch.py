"""Fetches a page of the server beside the load: its models or its metrics."""

from __future__ import annotations

import urllib.request
from http.client import HTTPException

from sonant.bench.client.target import Target

_TIMEOUT_S = 5.0


def fetch(target: Target, path: str) -> bytes | None:
    """The page's body; None if there is no such page, or no HTTP server.

    Like the load this goes straight to the server, whatever proxy the environment names.
    """
    request = urllib.request.Request(f"{target.address.root}{path}")
    if target.api_key:
        request.add_header("Authorization", f"Bearer {target.api_key}")
    ways = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=target.tls)
    try:
        with urllib.request.build_opener(*ways).open(request, timeout=_TIMEOUT_S) as response:
            body: bytes = response.read()
    except (OSError, HTTPException):
        return None
    return body
