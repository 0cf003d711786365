"""Checks, before a server loads a model, for what would end it for good afterwards. Needs no torch.

If a port is taken, or a folder cannot be written, trying again would only fail again, so it is reported at once.
`errors.is_permanent` says which of the later errors are of this kind.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

from sonant.errors import ConfigError
from sonant.serving.options import ServeOptions

_EVERYWHERE = ("", "0.0.0.0", "::")
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def check_start(options: ServeOptions) -> None:
    """Raises `ConfigError` for what would keep the server from starting here."""
    problem = port_problem(options.host, options.port)
    if problem is None and options.voices_folder is not None:
        problem = folder_problem(options.voices_folder)
    if problem is not None:
        raise ConfigError(problem)


def port_problem(host: str, port: int) -> str | None:
    """Why nobody can listen there now; None: the port is free. So is one that was in use a moment ago, as it is for the
    server."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as e:  # of the latter: an empty or a very long part between two dots
        why = e.strerror if isinstance(e, OSError) else "it is no name of a host"
        return f"--host {host} is not an address of this machine: {why}"
    problems = [_listening_problem(family, address) for family, _, _, _, address in found]
    # A name may have addresses of both families, of which this machine may have one only.
    judged = [problem for problem in problems if problem is None or problem.errno not in _NOT_HERE] or problems
    why = next((problem.strerror for problem in judged if problem is not None), None)
    if why is None:
        return None
    return f"nothing can listen on {host}:{port}: {why}; is a server running there? --port takes another"


def _listening_problem(family: int, address: tuple[Any, ...]) -> OSError | None:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            if os.name == "posix":
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except OSError as e:
        return e
    return None


def folder_problem(folder: Path) -> str | None:
    """Why no file can be made in the folder; None: one can. A missing folder is made, as the server would do."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as e:
        return f"the folder for voices, {folder}, cannot be written: {e.strerror or e}; --voices takes another"


def is_public(host: str) -> bool:
    """Whether other machines can reach this address. A name is assumed to be public, unless it is `localhost`."""
    if host in _EVERYWHERE:
        return True
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"


def page_address(host: str, port: int) -> str:
    """Where a browser on this machine finds the page."""
    reached = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{reached}]:{port}/" if ":" in reached else f"http://{reached}:{port}/"
