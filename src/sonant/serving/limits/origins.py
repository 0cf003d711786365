"""Which web pages may act here through a browser. A browser lets any page post a form or open a WebSocket anywhere.

Requests that change something, and all WebSockets, are checked if a browser sends them. A browser is known by the
`Origin` header, which it adds to all of these and no page can remove. The origin must be ours or one that the operator
named. It is ours if its host is that of the request, which must really be a name of ours: else a page whose name led
first to its own server and then to this machine (DNS rebinding) would pass. A numeric address cannot be rebound, so any
of those will do. With API keys the host is not checked, since such a page has no key.
"""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from sonant.serving.options import ServeOptions
from sonant.serving.refused import Refused

_READING = ("GET", "HEAD", "OPTIONS")


class Origins:
    def __init__(self, options: ServeOptions) -> None:
        self.friends = friends(options)
        self.named = frozenset(host.lower().rstrip(".") for host in options.allowed_hosts)
        machine = socket.gethostname().lower()
        self.names = self.named | {"localhost", options.host.lower(), machine, f"{machine}.local"}
        self.asks_host = not options.has_keys

    def check(self, scope: Scope, headers: Headers) -> None:
        """Raises `Refused` for a request that the page must not make through a browser."""
        if scope["type"] == "http" and scope["method"] in _READING:
            return
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        host = headers.get("host", "").lower()
        if self.asks_host and not self._is_ours(host):
            message = "this server is not known by that Host; name it with --allowed-host, or set an API key"
            raise Refused(403, "host_refused", message)
        if self._may(origin, site, host):
            return
        message = "pages of that origin may not use this server; name it with --cors-origin, or its host with "
        raise Refused(403, "origin_refused", message + "--allowed-host if it is this server behind a proxy")

    def _may(self, origin: str | None, site: str | None, host: str) -> bool:
        # A browser says same-origin even where a proxy changes the host, and no page can make it say so.
        if site == "same-origin" or (origin is None and site == "none"):
            return True
        if origin is None:
            return False
        origin = origin.lower()
        at = _split(origin)
        return origin in self.friends or "*" in self.friends or at[0] == host or at[1] in self.named

    def _is_ours(self, host: str) -> bool:
        name = _split(f"//{host}")[1].rstrip(".")
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self.names or name.endswith(".localhost")
        return True


def friends(options: ServeOptions) -> frozenset[str]:
    """The origins that the operator named, as browsers write them."""
    return frozenset(origin.lower().rstrip("/") for origin in options.cors_origins)


def _split(address: str) -> tuple[str, str]:
    """Host with port, and host alone; both empty if it is no address."""
    try:
        parts = urlsplit(address)
        return parts.netloc, parts.hostname or ""
    except ValueError:
        return "", ""
