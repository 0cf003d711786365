"""A process that answers HTTP. It has no engine and no torch; many of them share a port, and one engine."""

from __future__ import annotations

import sys

from sonant.serving.observability.shared_counters import share_counters
from sonant.serving.processes.setup import Setup, run_child
from sonant.serving.processes.shared_port import bound

_BACKLOG = 2048


def main() -> int:
    return run_child(_serve, when_orphaned=lambda _: None)


def _serve(setup: Setup) -> int:
    share_counters(setup.metrics)
    from sonant.models.registry import describe, load_prompter
    from sonant.serving.app import create_app
    from sonant.serving.channel.engine_link import EngineLink
    from sonant.serving.server import server_for

    link = EngineLink(setup.channel, load_prompter(setup.folder, setup.engine))
    server = server_for(create_app(link, setup.serving, describe(setup.folder), setup.folder.name), setup.serving)
    with bound(setup.host, setup.port) as listener:
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        server.run(sockets=[listener])
    return 0 if server.started else 1


if __name__ == "__main__":
    sys.exit(main())
