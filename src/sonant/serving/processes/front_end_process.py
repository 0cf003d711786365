"""A process that answers HTTP. It has no engine and no torch; many of them share a port, and one engine."""

from __future__ import annotations

import os
import socket
import sys

from sonant.errors import is_permanent
from sonant.exit_codes import EXIT_ERROR
from sonant.serving.observability.log_format import configure_logging
from sonant.serving.observability.shared_counters import share_counters
from sonant.serving.processes.setup import Setup, read_setup

_BACKLOG = 2048


def main() -> int:
    setup = read_setup(lambda _: None)
    configure_logging(setup.serving.log_level, setup.serving.log_format)
    share_counters(setup.metrics)
    try:
        return _serve(setup)
    except Exception as e:
        if not is_permanent(e):
            raise
        print(f"sonant: {e}", file=sys.stderr)
        return EXIT_ERROR


def _serve(setup: Setup) -> int:
    from sonant.models.registry import describe, load_prompter
    from sonant.serving.app import create_app
    from sonant.serving.channel.engine_link import EngineLink
    from sonant.serving.server import server_for

    link = EngineLink(setup.channel, load_prompter(setup.folder, setup.engine))
    server = server_for(create_app(link, setup.serving, describe(setup.folder), setup.folder.name), setup.serving)
    with listening(setup.host, setup.port) as listener:
        server.run(sockets=[listener])
    return 0 if server.started else 1


def listening(host: str, port: int) -> socket.socket:
    """A socket of this process's own on a port that others listen on too: the kernel shares connections out."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((host, port))
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    os.set_inheritable(listener.fileno(), False)
    return listener


if __name__ == "__main__":
    sys.exit(main())
